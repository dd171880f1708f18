"""The engines that benchmarks/routing.py simulates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_engine import Change, Job, PrefixCache, SimulatedEngine, shared_hit_rate


def test_a_prefix_is_found_up_to_its_first_block_that_is_not_held() -> None:
    cache: PrefixCache[str] = PrefixCache(4)
    assert cache.admit("abc") == Change(["a", "b", "c"], [])
    assert cache.match("abx") == 2
    assert cache.match("xbc") == 0


def test_the_least_recently_used_goes_first_and_a_prompts_end_before_its_start() -> None:
    cache: PrefixCache[str] = PrefixCache(4)
    cache.admit("abc")
    assert cache.admit("ade") == Change(["d", "e"], ["c"], "a")
    assert cache.match("abc") == 2
    assert cache.admit("fg") == Change(["f", "g"], ["b", "e"])
    assert cache.match("ade") == 2


def test_of_a_prompt_longer_than_the_cache_its_start_is_held() -> None:
    cache: PrefixCache[str] = PrefixCache(2)
    assert cache.admit("abcd") == Change(["a", "b"], [])
    assert cache.match("abcd") == 2


def test_a_hole_that_eviction_left_is_stored_again_behind_the_block_before_it() -> None:
    cache: PrefixCache[str] = PrefixCache(3)
    cache.admit("abc")
    cache.admit("d")
    assert cache.admit("abc") == Change(["c"], ["d"], "b")


def test_one_prompt_at_a_time_takes_its_uncached_tokens() -> None:
    engine: SimulatedEngine[str] = SimulatedEngine(capacity=10, block_size=4, token_s=0.5)
    assert engine.begin() is None
    engine.arrive(Job(arrived_at=10.0, num_tokens=9, chain="ab"))
    engine.arrive(Job(arrived_at=11.0, num_tokens=14, chain="abc"))

    assert engine.begin() == 4.5
    assert (engine.num_running, engine.num_waiting, engine.num_used_blocks) == (1, 1, 2)
    assert engine.begin() is None
    assert engine.finish(14.5) == Change(["a", "b"], [])
    assert engine.num_used_blocks == 0

    assert engine.begin() == 3.0
    engine.finish(17.5)
    figures = engine.figures
    assert (figures.prompt_tokens, figures.cached_tokens, figures.busy_s) == (23, 8, 7.5)
    assert figures.ttfts == [4.5, 6.5]


def test_the_last_token_is_computed_even_of_a_prompt_that_is_cached_whole() -> None:
    engine: SimulatedEngine[str] = SimulatedEngine(capacity=10, block_size=4, token_s=0.5)
    for moment in (0.0, 10.0):
        engine.arrive(Job(arrived_at=moment, num_tokens=8, chain="ab"))
    engine.begin()
    engine.finish(4.0)
    assert engine.begin() == 0.5


def test_the_bound_is_one_cache_before_all() -> None:
    prompts = [(8, "ab"), (12, "abc"), (4, "x"), (8, "ab")]
    assert shared_hit_rate(prompts, capacity=10, block_size=4) == pytest.approx((0 + 8 + 0 + 7) / 32)


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), max_size=30), st.integers(1, 8))
def test_what_is_told_adds_up_to_what_is_held(chains: list[list[int]], capacity: int) -> None:
    cache: PrefixCache[int] = PrefixCache(capacity)
    told: set[int] = set()
    for chain in chains:
        change = cache.admit(chain)
        assert not told & set(change.stored)
        told |= set(change.stored)
        assert set(change.removed) <= told
        told -= set(change.removed)
        assert len(told) == len(cache) <= capacity
        assert cache.match(chain) == min(len(chain), capacity)
