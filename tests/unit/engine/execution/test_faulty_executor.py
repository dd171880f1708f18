import time

import pytest

from atomesh.engine.core.batch import ScheduledBatch, ScheduledSequence, StepResult
from atomesh.engine.execution.faulty_executor import FaultyExecutor
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.sampling import SamplingSpec


class Recorder:
    def __init__(self) -> None:
        self.batches: list[ScheduledBatch] = []
        self.is_closed = False

    def execute(self, batch: ScheduledBatch) -> StepResult:
        self.batches.append(batch)
        return StepResult()

    def close(self) -> None:
        self.is_closed = True


def batch(*sequence_ids: int) -> ScheduledBatch:
    sampling = SamplingSpec(seed=0, max_tokens=1)
    return ScheduledBatch(
        tuple(ScheduledSequence(one, sampling, (1,), 0, (0,), (), (1,), ()) for one in sequence_ids)
    )


def test_unarmed_it_is_the_executor_itself() -> None:
    inner = Recorder()
    executor = FaultyExecutor(inner, FaultPoints())
    executor.execute(batch(1))
    executor.close()
    assert (len(inner.batches), inner.is_closed) == (1, True)


def test_a_step_fails_with_each_of_its_sequences_alone_and_the_next_does_not() -> None:
    inner, faults = Recorder(), FaultPoints()
    executor = FaultyExecutor(inner, faults)
    faults.arm("step_fail", 2)
    for failing in (batch(1, 2), batch(1), batch(2), batch(3)):
        with pytest.raises(RuntimeError, match="step_fail"):
            executor.execute(failing)
    executor.execute(batch(4))
    assert [one.sequences[0].sequence_id for one in inner.batches] == [4]


def test_a_step_takes_longer_by_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    faults = FaultPoints()
    faults.arm("step_delay", 1, 0.25)
    executor = FaultyExecutor(Recorder(), faults)
    executor.execute(batch(1))
    executor.execute(batch(1))
    assert slept == [0.25]
