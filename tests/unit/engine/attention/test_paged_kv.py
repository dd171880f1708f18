import torch

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import SequenceSpan

LAYERS, KV_HEADS, BLOCK, HEAD_DIM = 3, 2, 4, 5


def numbered_pool(num_blocks: int) -> PagedKV:
    """Every element is its own flat index."""
    size = (num_blocks, LAYERS, 2, KV_HEADS, BLOCK, HEAD_DIM)
    return PagedKV(torch.arange(num_blocks * LAYERS * 2 * KV_HEADS * BLOCK * HEAD_DIM).float().view(size))


def test_gather_takes_the_blocks_of_a_span_whole() -> None:
    pool = numbered_pool(6)
    span = SequenceSpan(first_row=0, start=10, end=11, blocks=[3, 5, 2])
    for layer in range(LAYERS):
        keys, values = pool.gather(layer, pool.parts(span, first_block=1))
        assert keys.shape == values.shape == (KV_HEADS, 2 * BLOCK, HEAD_DIM)
        for head in range(KV_HEADS):
            for index, block in enumerate([5, 2]):
                slots = slice(index * BLOCK, (index + 1) * BLOCK)
                assert torch.equal(keys[head, slots], pool.storage[block, layer, 0, head])
                assert torch.equal(values[head, slots], pool.storage[block, layer, 1, head])


def test_padding_repeats_the_last_block() -> None:
    pool = numbered_pool(6)
    span = SequenceSpan(first_row=0, start=6, end=7, blocks=[5, 2])
    keys, _ = pool.gather(1, pool.parts(span, first_block=0, padded_to=4))
    assert keys.shape == (KV_HEADS, 4 * BLOCK, HEAD_DIM)
    for block in (2, 3):
        assert torch.equal(keys[:, block * BLOCK : (block + 1) * BLOCK], keys[:, BLOCK : 2 * BLOCK])


def test_write_touches_only_the_new_tokens() -> None:
    pool = numbered_pool(6)
    before = pool.storage.clone()
    spans = [SequenceSpan(0, 3, 5, [1, 4]), SequenceSpan(2, 0, 1, [0])]
    key_value = -torch.rand(3, 2 * KV_HEADS, HEAD_DIM) - 1
    pool.write(2, pool.new_rows(spans), key_value)
    expected = before.clone()
    for row, (block, offset) in enumerate([(1, 3), (4, 0), (0, 0)]):
        expected[block, 2, :, :, offset] = key_value[row].view(2, KV_HEADS, HEAD_DIM)
    assert torch.equal(pool.storage, expected)


def test_copies_read_every_source_before_writing_any_target() -> None:
    pool = numbered_pool(4)
    before = pool.storage.clone()
    pool.copy_blocks(sources=[0, 1], targets=[1, 2])
    assert torch.equal(pool.storage[1], before[0])
    assert torch.equal(pool.storage[2], before[1])
    assert torch.equal(pool.storage[[0, 3]], before[[0, 3]])
