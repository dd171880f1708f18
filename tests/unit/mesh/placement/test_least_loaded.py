import pytest

from atomesh.mesh.cluster.registry import WorkerSnapshot
from atomesh.mesh.placement.least_loaded import least_loaded
from atomesh.protocol.worker import LoadReport


def worker(address: str, **fields: object) -> WorkerSnapshot:
    values: dict[str, object] = {
        "state": "ready",
        "description": None,
        "load": LoadReport(),
        "heard_at": 100.0,
        "in_flight": 0,
        "dispatched": 0,
    }
    return WorkerSnapshot(address=address, **{**values, **fields})


CASES = {
    "fewer in flight": [worker("a", in_flight=2), worker("b", in_flight=1)],
    "fewer by its own report": [worker("a", load=LoadReport(running=3, waiting=2)), worker("b", in_flight=4)],
    "ties to the less used": [worker("a", dispatched=7), worker("b", dispatched=6)],
    "the silent one last": [worker("a", heard_at=98.9), worker("b", in_flight=50)],
    "the only one, however silent": [worker("b", heard_at=0.0)],
}


@pytest.mark.parametrize("workers", CASES.values(), ids=CASES.keys())
def test_b_is_chosen(workers: list[WorkerSnapshot]) -> None:
    chosen = least_loaded(workers, now=100.0)
    assert chosen is not None
    assert chosen.address == "b"


def test_nobody_is_chosen_from_none() -> None:
    assert least_loaded([], now=0.0) is None


def test_equal_workers_take_turns() -> None:
    counts = {"a": 0, "b": 0, "c": 0}
    for _ in range(9):
        chosen = least_loaded([worker(name, dispatched=count) for name, count in counts.items()], now=100.0)
        assert chosen is not None
        counts[chosen.address] += 1
    assert counts == {"a": 3, "b": 3, "c": 3}
