import pytest

from atomesh.engine.core.block_pool import BlockPool
from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.protocol.block_hash import BlockHash


def cached_block(pool: BlockPool, cache: PrefixCache, name: str) -> int:
    block = pool.take()
    cache.insert(BlockHash(name.encode()), block)
    return block


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache()


def test_a_new_pool_is_free_and_gives_each_block_once(cache: PrefixCache) -> None:
    pool = BlockPool(3, cache)
    assert (pool.num_free, pool.num_idle, pool.num_available) == (3, 0, 3)
    assert [pool.take(), pool.take(), pool.take()] == [0, 1, 2]
    assert pool.num_available == 0
    pool.check_invariants()


def test_an_exhausted_pool_says_so(cache: PrefixCache) -> None:
    pool = BlockPool(1, cache)
    pool.take()
    with pytest.raises(IndexError, match="none of 1 KV blocks is free or idle"):
        pool.take()


def test_a_shared_block_is_free_after_its_last_release(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    block = pool.take()
    pool.hold(block)
    pool.release([block])
    assert (pool.references(block), pool.num_free) == (1, 1)
    pool.release([block])
    assert (pool.references(block), pool.num_free) == (0, 2)
    pool.check_invariants()


def test_a_block_cannot_be_released_twice(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    block = pool.take()
    pool.release([block])
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.release([block])


def test_a_registered_block_is_idle_after_its_last_release_and_can_be_held_again(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    block = cached_block(pool, cache, "a")
    pool.release([block])
    assert pool.is_idle(block)
    assert (pool.num_free, pool.num_idle, pool.num_available) == (1, 1, 2)
    pool.hold(block)
    assert not pool.is_idle(block)
    assert pool.references(block) == 1
    pool.check_invariants()


def test_free_blocks_are_taken_before_prefixes_are_forgotten(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    block = cached_block(pool, cache, "a")
    pool.release([block])
    assert pool.take() != block
    assert cache.block_of(BlockHash(b"a")) == block


def test_the_least_recently_used_prefix_is_forgotten_first(cache: PrefixCache) -> None:
    pool = BlockPool(3, cache)
    a, b, c = (cached_block(pool, cache, name) for name in "abc")
    for block in (a, b, c):
        pool.release([block])
    pool.hold(a)
    pool.release([a])
    assert [pool.take(), pool.take(), pool.take()] == [b, c, a]
    assert len(cache) == 0
    pool.check_invariants()


def test_tails_are_forgotten_before_their_heads(cache: PrefixCache) -> None:
    pool = BlockPool(3, cache)
    chain = [cached_block(pool, cache, name) for name in "abc"]
    pool.release(chain)
    assert [pool.take() for _ in chain] == chain[::-1]


def test_forgetting_idle_blocks_leaves_the_held_ones(cache: PrefixCache) -> None:
    pool = BlockPool(3, cache)
    idle, held = cached_block(pool, cache, "a"), cached_block(pool, cache, "b")
    pool.release([idle])
    pool.forget_idle()
    assert idle not in cache
    assert held in cache
    assert (pool.num_free, pool.num_idle) == (2, 0)
    pool.check_invariants()


def test_the_books_notice_a_lost_block(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    pool._free.pop()
    with pytest.raises(AssertionError, match="1 free"):
        pool.check_invariants()


def test_the_books_notice_a_free_block_that_claims_a_prefix(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    cache.insert(BlockHash(b"a"), 0)
    with pytest.raises(AssertionError, match="idle block without a prefix"):
        pool.check_invariants()


def test_a_reserved_block_is_held_when_it_is_full(cache: PrefixCache) -> None:
    pool = BlockPool(3, cache)
    block = pool.reserve()
    assert (pool.num_free, pool.num_reserved, pool.num_held) == (2, 1, 0)
    pool.fill(block)
    assert (pool.num_reserved, pool.num_held, pool.references(block)) == (0, 1, 1)
    pool.release([block])
    assert pool.num_free == 3
    pool.check_invariants()


def test_a_quarantined_block_is_not_given_to_anybody(cache: PrefixCache) -> None:
    pool = BlockPool(2, cache)
    blocks = [pool.reserve(), pool.reserve()]
    pool.quarantine(blocks)
    assert (pool.num_available, pool.num_reserved, pool.num_quarantined) == (0, 0, 2)
    with pytest.raises(IndexError):
        pool.take()
    pool.lift(blocks[:1])
    assert pool.take() == blocks[0]
    pool.check_invariants()


@pytest.mark.parametrize("step", ["fill", "quarantine", "lift"])
def test_only_what_is_in_the_state_before_can_go_on(cache: PrefixCache, step: str) -> None:
    pool = BlockPool(2, cache)
    held = pool.take()
    with pytest.raises(KeyError):
        getattr(pool, step)(held if step == "fill" else [held])


def test_a_prefix_is_forgotten_for_a_reservation(cache: PrefixCache) -> None:
    pool = BlockPool(1, cache)
    block = cached_block(pool, cache, "a")
    pool.release([block])
    assert pool.reserve() == block
    assert len(cache) == 0
    pool.check_invariants()
