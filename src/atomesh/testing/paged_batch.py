"""Batches laid out in a pool: earlier tokens' keys and values are random, every other slot holds NaN."""

import random
from collections.abc import Sequence

import torch

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan


def lay_out(
    batch: Sequence[tuple[int, int]], block_size: int, seed: int, num_blocks: int = 64
) -> list[SequenceSpan]:
    """Each sequence's start and end become a span, in blocks that no other has, in no order."""
    free = random.Random(seed).sample(range(num_blocks), num_blocks)  # noqa: S311  which blocks is no secret
    spans, row = [], 0
    for start, end in batch:
        blocks = [free.pop() for _ in range(-(-end // block_size))]
        spans.append(SequenceSpan(row, start, end, blocks))
        row += end - start
    return spans


def poisoned_pool(
    shape: AttentionShape,
    block_size: int,
    spans: Sequence[SequenceSpan],
    *,
    seed: int,
    num_blocks: int = 64,
    dtype: torch.dtype = torch.float32,
) -> PagedKV:
    """A sequence's tokens are the same wherever they lie, as long as it has its place among `spans`."""
    size = (num_blocks, len(shape.windows), 2, shape.num_kv_heads, block_size, shape.head_dim)
    storage = torch.full(size, float("nan"), dtype=dtype)
    for index, span in enumerate(spans):
        generator = torch.Generator().manual_seed(seed + index)
        for position in range(span.start):
            block, offset = span.blocks[position // block_size], position % block_size
            storage[block, :, :, :, offset] = torch.randn(*size[1:4], size[5], generator=generator).to(dtype)
    return PagedKV(storage)
