import pytest

from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.protocol.block_hash import BlockHash

A, B, C = (BlockHash(name) for name in (b"a", b"b", b"c"))


def test_the_longest_match_ends_at_the_first_gap() -> None:
    cache = PrefixCache()
    cache.insert(A, 7)
    cache.insert(C, 9)
    assert cache.longest_match([A, B, C]) == [7]
    assert cache.longest_match([B, A]) == []
    assert cache.longest_match([A, C]) == [7, 9]


@pytest.mark.parametrize(("block_hash", "block"), [(A, 2), (B, 1)])
def test_neither_a_prefix_nor_a_block_is_registered_twice(block_hash: BlockHash, block: int) -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    with pytest.raises(ValueError, match="already in the cache"):
        cache.insert(block_hash, block)


def test_a_forgotten_block_is_found_no_more() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    cache.forget(1)
    assert cache.block_of(A) is None
    assert 1 not in cache
    cache.insert(B, 1)
    assert cache.block_of(B) == 1
    cache.check_invariants()


def test_the_books_notice_maps_that_disagree() -> None:
    cache = PrefixCache()
    cache.insert(A, 1)
    cache._block_by_hash[A] = 2
    with pytest.raises(AssertionError, match="disagree"):
        cache.check_invariants()
