import logging
from typing import Any

import pytest

from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.testing.mesh_snapshots import worker_snapshot


class Backend:
    def __init__(self, address: str, registry: WorkerRegistry) -> None:
        self.address = address
        registry.expect(address)


def test_who_is_drained_or_removed_is_told_of_by_name(caplog: pytest.LogCaptureFixture) -> None:
    registry = WorkerRegistry(lambda _: None)
    make: Any = lambda address: Backend(address, registry)  # noqa: E731
    pool = BackendPool(make, registry)
    pool.add("x:1")
    pool.add("y:1")
    description = worker_snapshot("w-0").description
    assert description is not None
    registry.connected("x:1", description, 0.0)
    busy = registry.commit("x:1", prefill_tokens=8, sequences=1)

    caplog.set_level(logging.INFO)
    pool.drain("x:1")
    pool.remove("y:1")
    pool.remove("y:1")
    busy.end()
    assert [record.getMessage() for record in caplog.records] == [
        "worker w-0 (x:1) gets nothing new, and is removed once it has nothing left to do",
        "the worker at y:1 is removed",
        "worker w-0 (x:1) is removed",
    ]
    assert list(pool) == []
