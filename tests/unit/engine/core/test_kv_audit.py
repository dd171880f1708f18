"""The look at the books after every step: it is content while they are right, and finds what is lost."""

import logging
from collections.abc import Callable

import pytest

from atomesh.engine.core.block_pool import BlockPool
from atomesh.engine.core.kv_books import KVAudit
from atomesh.engine.core.prefix_cache import PrefixCache
from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_engine import ScriptedEngine, scripted_request


class Owner:
    num_holds = 0


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(8, PrefixCache())


def test_books_that_are_right(pool: BlockPool) -> None:
    one, other = Owner(), Owner()
    audit = KVAudit(pool, (one, other))
    assert audit.run() == 0
    block = pool.take()
    one.num_holds = 1
    assert audit.run() == 0
    pool.hold(block)
    other.num_holds = 1
    assert audit.run() == 0
    reserved = [pool.reserve(), pool.reserve()]
    assert audit.run() == 0
    pool.fill(reserved[0])
    one.num_holds = 2
    pool.quarantine([reserved[1]])
    assert audit.run() == 0
    pool.lift([reserved[1]])
    pool.release([block])
    other.num_holds = 0
    assert audit.run() == 0
    assert (pool.num_held, pool.num_references) == (2, 2)
    assert (audit.unaccounted, audit.imbalances) == (0, 0)


LOSSES: dict[str, Callable[[BlockPool], object]] = {
    "in no state": lambda pool: pool._free.pop(),
    "in two states": lambda pool: pool._free.append(0),
    "held by nobody": lambda pool: pool.take(),
    "held once more than anybody knows": lambda pool: pool.hold(0),
    "released by somebody who goes on": lambda pool: pool.release([0]),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_what_is_unaccounted_for_is_found_and_counted_each_time(
    pool: BlockPool, lose: Callable[[BlockPool], object]
) -> None:
    owner = Owner()
    audit = KVAudit(pool, (owner,))
    assert pool.take() == 0
    owner.num_holds = 1
    assert audit.run() == 0
    lose(pool)
    assert (audit.run(), audit.run()) == (1, 1)
    assert (audit.unaccounted, audit.imbalances) == (1, 2)


def test_where_others_hold_blocks_too_only_the_states_are_looked_at(pool: BlockPool) -> None:
    audit = KVAudit(pool, ())
    pool.take()
    assert audit.run() == 0
    pool._free.pop()
    assert audit.run() == 1


CONFIG = SchedulerConfig(
    max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=32
)


def test_an_engine_looks_after_every_step_and_says_a_fault_once(caplog: pytest.LogCaptureFixture) -> None:
    one = ScriptedEngine(CONFIG)
    spec = SamplingSpec(seed=0, max_tokens=6)
    one.engine.add(scripted_request("a", list(range(9)), spec, n=2))
    for _ in range(3):
        one.step()
        load = one.engine.load()
        by_state = load.free_blocks + load.cached_blocks + load.held_blocks
        assert (by_state, load.unaccounted_blocks, load.kv_imbalances) == (32, 0, 0)
    assert load.held_blocks > 0
    one.scheduler._kv.pool._free.pop()
    with caplog.at_level(logging.ERROR):
        one.engine.step()
        one.engine.step()
        one.engine.poll()
    load = one.engine.load()
    assert (load.unaccounted_blocks, load.kv_imbalances) == (1, 3)
    assert [record.message for record in caplog.records] == [
        "the KV cache's books are wrong: 1 blocks or holds are nobody's"
    ]
