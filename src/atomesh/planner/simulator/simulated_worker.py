"""A worker in virtual time: the engine's own scheduler, and a latency model in the place of a device."""

from collections.abc import Callable
from functools import partial

from atomesh.engine.core.batch import SampledToken, ScheduledBatch, SequenceOutcome, StepResult
from atomesh.engine.core.scheduler import Scheduler
from atomesh.mesh.placement.costs import StepCosts
from atomesh.planner.simulator.event_loop import EventLoop
from atomesh.planner.simulator.latency_model import work_of
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
            tokens, squares = work_of(batch)
            seconds = self._costs.fixed_s + self._costs.token_s * tokens + self._costs.quadratic_s * squares
            self.busy_s += seconds
            self._loop.after(seconds, partial(self._finish, batch, seconds))

    def _finish(self, batch: ScheduledBatch, seconds: float) -> None:
        result = StepResult(
            {one.sequence_id: SequenceOutcome((ANY_TOKEN,) * len(one.choices)) for one in batch.sequences}
        )
        deltas = self.scheduler.update(batch, result, self._loop.now())
        tokens, squares = work_of(batch)
        frame = StepFrame(
            deltas=deltas,
            load=self.scheduler.load(),
            sample=StepSample(seconds, tokens, squares, 0, 0),
        )
        self._hear(self, frame)
        self._step()
