"""The engine's narrow door to the arithmetic: a torch model in earnest, a script in tests and simulations."""

from typing import Protocol

from atomesh.engine.core.batch import ScheduledBatch, StepResult


class Executor(Protocol):
    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Apply the batch's block copies, compute its tokens, sample where asked.

        The batch's lists belong to the scheduler: read them, and keep none beyond this call.
        A sequence that alone cannot go on is reported in its outcome. Whatever is raised makes the engine run
        the batch's sequences one by one, so executing a sequence again must give the same result.
        """
        ...

    def close(self) -> None:
        """Release the device's memory; nothing is executed afterwards."""
        ...
