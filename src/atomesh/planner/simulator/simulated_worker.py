"""A worker in virtual time: the engine's own scheduler, and a latency model in the place of a device."""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from atomesh.engine.core.batch import SampledToken, ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.scheduler import Scheduler
from atomesh.engine.core.step_measure import measure
from atomesh.mesh.placement.costs import StepCosts
from atomesh.planner.simulator.event_loop import EventLoop
from atomesh.planner.simulator.latency_model import step_seconds
from atomesh.protocol.frames import StepFrame
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.step_sample import StepSample
from atomesh.protocol.worker import WorkerDescription

ANY_TOKEN = SampledToken(0)

Hear = Callable[["SimulatedWorker", StepFrame], None]


class SimulatedWorker:
    """Samples token 0 at every place. `busy_s` is the time it has computed for."""

    def __init__(
        self,
        description: WorkerDescription,
        scheduler: Scheduler,
        costs: StepCosts,
        loop: EventLoop,
        hear: Hear,
    ) -> None:
        """`hear` takes the frame of each step at the moment at which the step ends."""
        self.description = description
        self.scheduler = scheduler
        self.busy_s = 0.0
        self._costs = costs
        self._loop = loop
        self._hear = hear
        self._is_computing = False

    def submit(self, request: GenerationRequest) -> None:
        self.scheduler.add(request, self._loop.now())
        if not self._is_computing:
            self._step()

    def _step(self) -> None:
        batch = self.scheduler.schedule(self._loop.now())
        self._is_computing = bool(batch.sequences)
        if self._is_computing:
            work = measure(batch, 0.0)
            seconds = step_seconds(self._costs, work)
            self.busy_s += seconds
            self._loop.after(seconds, partial(self._finish, batch, replace(work, seconds=seconds)))

    def _finish(self, batch: ScheduledBatch, sample: StepSample) -> None:
        result = StepResult(
            {one.sequence_id: SequenceOutcome((ANY_TOKEN,) * len(one.choices)) for one in batch.sequences}
        )
        scheduler = self.scheduler
        deltas = scheduler.update(batch, result, self._loop.now())
        self._hear(self, StepFrame(deltas, scheduler.load(), scheduler.journal.take(), sample))
        self._step()
