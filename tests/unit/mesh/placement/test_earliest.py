import random

import pytest

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.costs import Costs, StepCosts
from atomesh.mesh.placement.earliest import earliest_first_token_s
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.testing.mesh_snapshots import MODEL, cluster, worker_snapshot

STEP = StepCosts(fixed_s=1.0, token_s=0.01, quadratic_s=0.0, context_s=0.0, sequence_s=0.0, chunk_tokens=1000)


def earliest(
    *workers: WorkerSnapshot, cached: int = 0, measured: tuple[str, ...] = ("u", "v", "d")
) -> float | None:
    inputs = PlacementInputs(
        request=RequestFacts(num_prompt_tokens=100, block_size=16),
        model=MODEL,
        cluster=cluster(*workers),
        now=100.0,
        dice=random.Random(0),
        matches={"v-life": MatchedBlocks(device=cached)},
        costs=Costs(steps={f"{name}-life": STEP for name in measured}),
    )
    return earliest_first_token_s(workers, inputs)


def test_an_idle_worker_takes_as_long_as_the_prompt() -> None:
    assert earliest(worker_snapshot("u")) == pytest.approx(1.0 + 100 * 0.01)


def test_the_quickest_counts_with_its_queue_and_what_it_holds() -> None:
    busy = worker_snapshot("u", prefill_tokens=500)
    assert earliest(busy) == pytest.approx((1.0 + 500 * 0.01) + (1.0 + 100 * 0.01))
    assert earliest(busy, worker_snapshot("v"), cached=5) == pytest.approx(1.0 + 20 * 0.01)


def test_who_never_prefills_is_no_help() -> None:
    idle_decode = worker_snapshot("d", "decode")
    assert earliest(worker_snapshot("u", prefill_tokens=500), idle_decode) == earliest(
        worker_snapshot("u", prefill_tokens=500)
    )


def test_nothing_is_said_of_those_who_have_not_been_measured() -> None:
    assert earliest() is None
    assert earliest(worker_snapshot("u"), worker_snapshot("v"), measured=("v",)) is None
