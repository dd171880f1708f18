import random
from typing import Any

import pytest

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.costs import Costs, StepCosts
from atomesh.mesh.placement.earliest import earliest_first_token_s
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import MODEL, cluster, worker_snapshot

STEP = StepCosts(fixed_s=1.0, token_s=0.01, quadratic_s=0.0, context_s=0.0, sequence_s=0.0, chunk_tokens=1000)


BUSY = LoadReport(running=1)


def earliest(
    *workers: WorkerSnapshot, cached: int = 0, settled: tuple[str, ...] = ("u", "v", "d")
) -> float | None:
    lives = {f"{name}-life": STEP for name in ("u", "v", "d")}
    inputs = PlacementInputs(
        request=RequestFacts(num_prompt_tokens=100, block_size=16),
        model=MODEL,
        cluster=cluster(*workers),
        now=100.0,
        dice=random.Random(0),
        matches={"v-life": MatchedBlocks(device=cached)},
        costs=Costs(steps=lives, settled=frozenset(f"{name}-life" for name in settled)),
    )
    return earliest_first_token_s(workers, inputs)


def test_a_busy_worker_takes_as_long_as_the_prompt() -> None:
    assert earliest(worker_snapshot("u", load=BUSY)) == pytest.approx(1.0 + 100 * 0.01)


def test_the_quickest_counts_with_its_queue_and_what_it_holds() -> None:
    queued = worker_snapshot("u", prefill_tokens=500, in_flight=1)
    assert earliest(queued) == pytest.approx((1.0 + 500 * 0.01) + (1.0 + 100 * 0.01))
    assert earliest(queued, worker_snapshot("v", load=BUSY), cached=5) == pytest.approx(1.0 + 20 * 0.01)


@pytest.mark.parametrize(
    "busy",
    [{"load": BUSY}, {"load": LoadReport(waiting=1)}, {"in_flight": 1}],
    ids=lambda busy: next(iter(busy)),
)
def test_what_an_idle_worker_would_take_is_no_prediction_but_a_measurement(busy: dict[str, Any]) -> None:
    """Else one slow step would have all later requests refused, and never be made up for."""
    idle, longer = worker_snapshot("u"), worker_snapshot("v", prefill_tokens=500, **busy)
    assert earliest(idle) is None
    assert earliest(idle, longer) is None
    assert earliest(worker_snapshot("u", **busy)) == pytest.approx(2.0)
    assert earliest(worker_snapshot("u", prefill_tokens=1, **busy), worker_snapshot("v")) is None


def test_who_never_prefills_is_no_help() -> None:
    idle_decode = worker_snapshot("d", "decode")
    queued = worker_snapshot("u", prefill_tokens=500, in_flight=1)
    assert earliest(queued, idle_decode) == earliest(queued) == pytest.approx(8.0)
    assert earliest(queued, idle_decode, settled=("u",)) == pytest.approx(8.0)


def test_nothing_is_said_by_costs_that_are_not_settled() -> None:
    assert earliest() is None
    busy = worker_snapshot("u", load=BUSY), worker_snapshot("v", load=BUSY)
    assert earliest(*busy, settled=("v",)) is None
    assert earliest(*busy) is not None
