from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.mesh.cluster.rebalance import HOLD_S
from atomesh.mesh.cluster.registry import Work, WorkerRegistry
from atomesh.mesh.gateway.rebalancer import Mode, Rebalancer
from atomesh.protocol.worker import PRESETS, Role, RoleWeights
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.mesh_snapshots import worker_description


class Backend:
    weights: RoleWeights | None = None

    def set_role(self, weights: RoleWeights) -> None:
        self.weights = weights


@pytest.mark.parametrize(("mode", "given"), [("dry-run", None), ("on", PRESETS["prefill"])])
def test_a_pressed_pool_gets_a_worker_or_it_is_only_said(mode: Mode, given: RoleWeights | None) -> None:
    registry, clock = WorkerRegistry(lambda _: None), ManualClock(100.0)
    roles: dict[str, Role] = {"p": "prefill", "d": "decode", "e": "decode"}
    pool: Any = {name: Backend() for name in roles}
    for name, role in roles.items():
        told = replace(worker_description(name, role), max_num_seqs=8, max_num_batched_tokens=100)
        registry.expect(name)
        registry.connected(name, told, now=clock.now())
    registry.commit_work("p", Work(prefill_tokens=500, sequences=1))
    rebalancer = Rebalancer(mode, pool, registry, clock)
    rebalancer.look()
    clock.advance(HOLD_S)
    rebalancer.look()
    assert [backend.weights for backend in pool.values()] == [None, given, None]
    [family] = rebalancer.collect()
    assert {tuple(sample.labels.values()): sample.value for sample in family.samples} == {
        ("prefill", mode): 1.0,
        ("decode", mode): 0.0,
    }
