from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from atomesh.protocol.block_hash import HASH_BYTES, BlockHasher

TOKENS = [5, 6, 7, 8]


def chain(hasher, *blocks, salt="", adapter=""):
    parent = hasher.root(salt, adapter)
    for block in blocks:
        parent = hasher.extend(parent, block)
    return parent


def test_the_same_secret_gives_the_same_hash_in_every_process():
    assert (
        chain(BlockHasher(b"k", "model", 4), TOKENS).hex()
        == chain(BlockHasher(b"k", "model", 4), TOKENS).hex()
    )
    assert len(chain(BlockHasher(b"k", "model", 4), TOKENS)) == HASH_BYTES == 16


def test_whatever_differs_gives_another_hash():
    base = BlockHasher(b"k", "model", 4)
    hashes = [
        chain(base, TOKENS),
        chain(BlockHasher(b"other", "model", 4), TOKENS),
        chain(BlockHasher(b"k", "model2", 4), TOKENS),
        chain(base, TOKENS, salt="a"),
        chain(base, TOKENS, adapter="a"),
        chain(base, TOKENS, TOKENS),
        chain(base, [5, 6, 7, 9]),
        chain(base, [1, 2, 3, 4], TOKENS),
        base.root(),
    ]
    assert len(set(hashes)) == len(hashes)


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, unique=True))
def test_salt_and_adapter_cannot_be_shifted_into_each_other(pairs):
    hasher = BlockHasher(b"k", "model", 4)
    roots = [hasher.root(salt, adapter) for salt, adapter in pairs]
    assert all(left != right for left, right in pairwise(sorted(roots)))


def test_chain_hashes_every_full_block_after_the_one_before_it():
    hasher = BlockHasher(b"k", "model", 4)
    hashes = hasher.chain([*TOKENS, *TOKENS, 1, 2, 3], salt="a")
    first = hasher.extend(hasher.root("a"), TOKENS)

    assert hashes == [first, hasher.extend(first, TOKENS)]
    assert hasher.chain(TOKENS[:3]) == []
