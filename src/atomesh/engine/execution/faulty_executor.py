"""An executor that fails or dawdles when a test has asked for it."""

import time

from atomesh.engine.core.batch import ScheduledBatch, StepResult
from atomesh.engine.executor import Executor
from atomesh.protocol.fault_points import FaultPoints


class FaultyExecutor:
    """Implements `engine.executor.Executor` over another one."""

    def __init__(self, executor: Executor, faults: FaultPoints) -> None:
        self._executor = executor
        self._faults = faults
        self._to_fail = 0

    def execute(self, batch: ScheduledBatch) -> StepResult:
        delay_s = self._faults.take("step_delay")
        if delay_s is not None:
            time.sleep(delay_s)
        if self._to_fail == 0 and self._faults.fires("step_fail"):
            # the engine will try each sequence of a larger batch alone
            self._to_fail = 1 if len(batch.sequences) == 1 else 1 + len(batch.sequences)
        if self._to_fail:
            self._to_fail -= 1
            raise RuntimeError("the fault point step_fail has fired")
        return self._executor.execute(batch)

    def close(self) -> None:
        self._executor.close()
