from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.protocol.worker import LoadReport, ModelDescription, WorkerDescription


def describe(incarnation: str, model: str = "m") -> WorkerDescription:
    shape = ModelDescription(
        name=model,
        path="",
        architecture="",
        dtype="",
        vocab_size=1,
        max_model_len=1,
        eos_token_ids=(),
        block_size=16,
        num_blocks=1,
    )
    return WorkerDescription(worker_id="w", incarnation=incarnation, pid=1, role="unified", model=shape)


def test_a_worker_is_ready_between_hello_and_loss() -> None:
    heard: list[WorkerDescription] = []
    registry = WorkerRegistry(heard.append)
    registry.expect("a")
    assert registry.snapshot().workers[0].state == "connecting"
    registry.lost("a")
    assert registry.snapshot().workers[0].state == "connecting"
    registry.connected("a", describe("1"), now=5.0)
    [ready] = registry.snapshot().ready("m")
    assert (ready.heard_at, ready.model_name) == (5.0, "m")
    assert registry.snapshot().ready("another") == ()
    registry.lost("a")
    assert registry.snapshot().ready("m") == ()
    assert registry.snapshot().workers[0].state == "lost"
    registry.connected("a", describe("2"), now=9.0)
    assert [worker.incarnation for worker in heard] == ["1", "2"]


def test_a_loads_report_does_not_outlive_its_worker() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    registry.connected("a", describe("1"), now=0.0)
    registry.heard("a", LoadReport(running=3), now=1.0)
    assert registry.snapshot().workers[0].load.running == 3
    assert registry.heard_at("a") == 1.0
    registry.lost("a")
    assert registry.snapshot().workers[0].load == LoadReport()


def test_snapshots_do_not_change_with_the_registry() -> None:
    registry = WorkerRegistry(lambda _: None)
    registry.expect("a")
    before = registry.snapshot()
    registry.dispatched("a")
    registry.dispatched("a")
    registry.finished("a")
    assert (before.workers[0].in_flight, before.workers[0].dispatched) == (0, 0)
    after = registry.snapshot().workers[0]
    assert (after.in_flight, after.dispatched) == (1, 2)
