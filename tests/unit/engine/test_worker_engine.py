import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_parts
from atomesh.engine.execution import kv_pool
from atomesh.engine.options import EngineOptions
from atomesh.engine.parts import EngineParts
from atomesh.engine.worker_engine import WorkerEngine, assemble
from atomesh.engine.worker_spec import WorkerSpec
from atomesh.errors import ConfigurationError, EngineError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import write_tiny_model

SECRET = b"s" * 32


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[EngineParts]:
    model = open_checkpoint(write_tiny_model(tmp_path / "model"))
    made = build_parts(model, EngineOptions(dtype="float32", kv_memory=2**20), "tiny")
    yield made
    made.executor.close()


def spec(kv_listen: str | None, faults: FaultPoints | None = None) -> WorkerSpec:
    return WorkerSpec(SECRET, "incarnation", kv_listen, faults=faults or NoFaults())


def answer(worker: WorkerEngine) -> list[TokenDelta]:
    sampling = SamplingSpec(seed=0, max_tokens=3, temperature=0.0)
    worker.engine.add(GenerationRequest(request_id="r", prompt_token_ids=[5, 6, 7], sampling=sampling))
    deltas: list[TokenDelta] = []
    while worker.engine.has_work():
        deltas += worker.engine.step()
    return deltas


def test_a_worker_without_a_kv_plane_says_so_and_answers(parts: EngineParts) -> None:
    worker = assemble(parts, spec(None), MonotonicClock())
    assert (worker.kv_address, worker.kv_layout) == (None, None)
    assert len(answer(worker)) == 3


def test_a_kv_plane_says_where_it_listens_and_what_it_holds(parts: EngineParts) -> None:
    worker = assemble(parts, spec("127.0.0.1:0"), MonotonicClock())
    try:
        assert worker.kv_address is not None
        assert int(worker.kv_address.removeprefix("127.0.0.1:")) > 0
        assert worker.kv_layout == parts.layout()
        assert len(answer(worker)) == 3
    finally:
        worker.engine.close()


def test_a_pool_that_no_transport_can_reach_cannot_be_handed_over(parts: EngineParts) -> None:
    with pytest.raises(ConfigurationError, match="--kv-listen off"):
        assemble(replace(parts, memory=None), spec("127.0.0.1:0"), MonotonicClock())


def test_an_address_that_cannot_be_had_is_an_error_of_configuration(parts: EngineParts) -> None:
    with pytest.raises(ConfigurationError):
        assemble(parts, spec("unix:/no/such/directory/kv"), MonotonicClock())


def test_faults_reach_the_executor_only_where_they_are_enabled(parts: EngineParts) -> None:
    faults = FaultPoints()
    worker = assemble(parts, spec(None, faults), MonotonicClock())
    faults.arm("step_fail")
    [failed] = answer(worker)
    assert failed.error is not None
    assert failed.error.kind == EngineError.__name__
    assert len(answer(worker)) == 3


def test_memory_is_backed_when_the_worker_is_ready_and_not_before(
    parts: EngineParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_pool, "PAUSE_S", 3600.0)
    monkeypatch.setattr(kv_pool, "SLICE_BYTES", 4096)
    worker = assemble(parts, spec(None), MonotonicClock())
    answer(worker)
    assert touchers() == 0
    worker.warm_up()
    assert touchers() == 1


def touchers() -> int:
    return sum(thread.name == "kv-pool-touch" for thread in threading.enumerate())
