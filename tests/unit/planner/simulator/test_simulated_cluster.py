"""Whole runs: the same seed gives the same figures, and caching and placement show in them."""

from random import Random

import pytest

from atomesh.bench.trace import read_trace
from atomesh.planner.simulator.simulated_cluster import IDEAL, FleetSettings, keeps_promise, simulate
from atomesh.planner.simulator.workload import Arrival, Workload, make_workload
from atomesh.testing.conversation_trace import BLOCK_TOKENS, write_conversation_trace

FLEET = FleetSettings(num_workers=4, blocks_per_worker=1000)


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    trace = tmp_path_factory.mktemp("trace") / "conversations.jsonl"
    write_conversation_trace(trace, 400)
    arrivals = [Arrival(one.at_s, one.input_tokens, one.prefix_ids) for one in read_trace(trace)]
    return make_workload(arrivals, BLOCK_TOKENS, Random(0))


def at_load(workload: Workload, load: float) -> Workload:
    return workload.at_load(load, FLEET.costs, FLEET.num_workers)


def test_the_same_seed_gives_the_same_figures(workload: Workload) -> None:
    busy = at_load(workload, 1.0)

    first, second = (simulate(FLEET, busy, "random") for _ in range(2))
    other = simulate(FleetSettings(num_workers=4, blocks_per_worker=1000, seed=1), busy, "random")

    assert first == second != other
    assert first.num_requests == 400


def test_one_at_a_time_is_what_the_formula_says() -> None:
    apart = Workload(
        tuple(Arrival(100.0 * n, 8000, tuple(range(16 * n, 16 * n + 16))) for n in range(8)), 512
    )

    found = simulate(FLEET, apart, "round_robin")

    alone = FLEET.costs.fixed_s + FLEET.costs.tokens_s(8000, 0) + 2 * FLEET.delay_s
    assert found.ttft_mean_s == pytest.approx(alone)
    assert found.ttft_p99_s == pytest.approx(alone)
    assert (found.hit_rate, found.imbalance, found.within_limit) == (0.0, pytest.approx(1.0), 1.0)


def test_one_cache_for_all_finds_what_any_worker_computed(workload: Workload) -> None:
    calm = at_load(workload, 0.2)

    ideal, kv_aware, blind = (simulate(FLEET, calm, policy) for policy in (IDEAL, "kv_aware", "round_robin"))

    assert ideal.hit_rate >= kv_aware.hit_rate > 1.5 * blind.hit_rate
    assert ideal.ttft_mean_s <= kv_aware.ttft_mean_s < blind.ttft_mean_s


def test_a_promise_is_kept_up_to_some_load(workload: Workload) -> None:
    assert keeps_promise(FLEET, at_load(workload, 0.3), "least_work")
    assert not keeps_promise(FLEET, at_load(workload, 4.0), "least_work")
