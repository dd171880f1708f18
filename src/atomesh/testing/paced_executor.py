"""An executor without a model that takes a model's time: each step sleeps for what its batch costs."""

import time
from collections.abc import Callable

from atomesh.engine.core.batch import SampledToken, ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.step_measure import measure
from atomesh.protocol.step_sample import StepSample

TOKEN = SampledToken(0)


class PacedExecutor:
    """Samples token 0 at every place. `busy_s` is how long its steps were to take in all."""

    def __init__(self, seconds: Callable[[StepSample], float], sleep: Callable[[float], None] = time.sleep):
        """`seconds` says how long a step takes that computes what the sample counts."""
        self.busy_s = 0.0
        self._seconds = seconds
        self._sleep = sleep

    def execute(self, batch: ScheduledBatch) -> StepResult:
        seconds = self._seconds(measure(batch, 0.0))
        self.busy_s += seconds
        self._sleep(seconds)
        return StepResult(
            {one.sequence_id: SequenceOutcome((TOKEN,) * len(one.choices)) for one in batch.sequences}
        )

    def close(self) -> None:
        """There is nothing to release."""
