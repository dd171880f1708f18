"""The fast attention against its definition, over a pool whose unused slots hold NaN."""

import pytest
import torch

from atomesh.engine.attention.reference import ReferenceAttention
from atomesh.engine.attention.shape import AttentionShape
from atomesh.engine.attention.torch_attention import TILE_ROWS, TorchAttention
from atomesh.testing.paged_batch import lay_out, poisoned_pool

HEAD_DIM = 8

SHAPES = {
    "grouped heads": AttentionShape(6, 2, HEAD_DIM, 0.35, None, (None, None)),
    "one key head": AttentionShape(4, 1, HEAD_DIM, 0.35, None, (None, None)),
    "one head each": AttentionShape(3, 3, HEAD_DIM, 0.5, None, (None, None)),
    "windows": AttentionShape(4, 2, HEAD_DIM, 0.35, None, (7, None)),
    "window of one block": AttentionShape(4, 2, HEAD_DIM, 0.35, None, (16, 33)),
    "window of one token": AttentionShape(4, 2, HEAD_DIM, 0.35, None, (1, 2)),
    "soft cap": AttentionShape(4, 2, HEAD_DIM, 2.0, 1.5, (None, 9)),
}

# Each sequence's start and end: a batch as the scheduler makes them.
BATCHES = {
    "one token": [(0, 1)],
    "one decode": [(40, 41)],
    "decodes of one length": [(40, 41)] * 3,
    "decodes of all lengths": [(0, 1), (15, 16), (16, 17), (31, 32), (90, 91), (5, 6), (88, 89)],
    "prompts": [(0, 5), (0, 32), (0, 33), (0, 2)],
    "chunks": [(16, 40), (31, 33), (7, 50)],
    "mixed": [(0, 20), (40, 41), (16, 40), (0, 1), (44, 45), (63, 65)],
    "mixed in the wrong order": [(40, 41), (0, 20), (17, 18), (16, 40)],
}


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_equals_the_reference(shape: AttentionShape, batch: list[tuple[int, int]], block_size: int) -> None:
    spans = lay_out(batch, block_size, seed=len(batch))
    pools = [poisoned_pool(shape, block_size, spans, seed=1) for _ in range(2)]
    reference = ReferenceAttention(shape, pools[0], spans)
    fast = TorchAttention(shape, pools[1]).prepare(spans)
    torch.manual_seed(2)
    rows = sum(end - start for start, end in batch)
    for layer in range(len(shape.windows)):
        query = torch.randn(rows, shape.num_heads, HEAD_DIM)
        key_value = torch.randn(rows, 2 * shape.num_kv_heads, HEAD_DIM)
        torch.testing.assert_close(
            fast.attend(layer, query, key_value),
            reference.attend(layer, query, key_value),
            rtol=1e-5,
            atol=1e-5,
        )
    assert torch.equal(pools[0].storage.nan_to_num(99.0), pools[1].storage.nan_to_num(99.0))


@pytest.mark.parametrize("window", [None, 100])
def test_a_prompt_longer_than_a_tile(window: int | None) -> None:
    shape = AttentionShape(2, 1, HEAD_DIM, 0.35, None, (window,))
    spans = lay_out([(30, 30 + TILE_ROWS + 40)], 16, seed=3)
    pools = [poisoned_pool(shape, 16, spans, seed=1) for _ in range(2)]
    query = torch.randn(TILE_ROWS + 40, 2, HEAD_DIM)
    key_value = torch.randn(TILE_ROWS + 40, 2, HEAD_DIM)
    torch.testing.assert_close(
        TorchAttention(shape, pools[1]).prepare(spans).attend(0, query, key_value),
        ReferenceAttention(shape, pools[0], spans).attend(0, query, key_value),
        rtol=1e-5,
        atol=1e-5,
    )


def test_queries_that_are_views_of_a_fused_product() -> None:
    shape = SHAPES["grouped heads"]
    spans = lay_out([(0, 20), (40, 41)], 16, seed=3)
    pools = [poisoned_pool(shape, 16, spans, seed=1) for _ in range(2)]
    heads = torch.randn(21, 6 + 4, HEAD_DIM)
    answers = [
        attention.attend(0, heads[:, :6], heads[:, 6:])
        for attention in (
            TorchAttention(shape, pools[0]).prepare(spans),
            ReferenceAttention(shape, pools[1], spans),
        )
    ]
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-5)


def test_a_longer_context_grows_the_masks() -> None:
    shape = AttentionShape(2, 1, HEAD_DIM, 0.35, None, (None,))
    pool = poisoned_pool(shape, 16, [], seed=1)
    attention = TorchAttention(shape, pool)
    key_value = torch.zeros(TILE_ROWS + 8, 2, HEAD_DIM)
    key_value[:, 1] = torch.arange(TILE_ROWS + 8)[:, None]  # the mean of what is seen tells how much is seen
    for end in (4, TILE_ROWS + 8):
        spans = lay_out([(0, end)], 16, seed=1)
        answer = attention.prepare(spans).attend(0, torch.zeros(end, 2, HEAD_DIM), key_value[:end])
        torch.testing.assert_close(answer[:, 0], torch.arange(end) / 2)
