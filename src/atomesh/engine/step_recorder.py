"""Notes what the engine does while somebody wants to see it; otherwise it costs a look at a flag."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atomesh.engine.core.step_measure import measure
from atomesh.protocol.step_trace import (
    MAX_TRACE_TRANSFERS,
    StepRecord,
    StepTrace,
    TraceLimits,
    TransferRecord,
)

if TYPE_CHECKING:
    from atomesh.clock import Clock
    from atomesh.engine.core.batch import ScheduledBatch
    from atomesh.protocol.worker import LoadReport


@dataclass(frozen=True, slots=True)
class StepTimes:
    """On the engine's clock; each part ends where the next one begins."""

    began_at: float
    scheduled_at: float
    executed_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """That has just ended, after `seconds`; `num_bytes` where that is known."""

    kind: Literal["push", "receive"]
    peer: str
    seconds: float
    blocks: int
    num_bytes: int | None = None
    outcome: str = "ok"


class StepRecorder:
    """Owned by the engine's thread. Keeps at most one recording, and no more of it than TraceLimits allow."""

    def __init__(self, clock: "Clock") -> None:
        self.is_on = False
        self._clock = clock
        self._limits: TraceLimits | None = None
        self._began_at = 0.0
        self._steps: list[StepRecord] = []
        self._transfers: list[TransferRecord] = []
        self._left_out = 0

    def start(self, limits: TraceLimits) -> None:
        """Begin anew; what was recorded before and not asked for is gone."""
        self._limits, self.is_on, self._began_at = limits, True, self._clock.now()
        self._steps, self._transfers, self._left_out = [], [], 0

    def stop(self) -> StepTrace | None:
        """What was recorded, once; None when nobody has asked for it."""
        limits, self._limits = self._limits, None
        if limits is None:
            return None
        was_on, self.is_on = self.is_on, False
        now_s = self._clock.now() - self._began_at
        trace = StepTrace(
            began_ago_s=now_s,
            is_cut=not was_on or now_s > limits.seconds,
            steps=self._steps,
            transfers=self._transfers,
            transfers_left_out=self._left_out,
        )
        self._steps, self._transfers = [], []
        return trace

    def saw_step(self, batch: "ScheduledBatch", times: StepTimes, load: "LoadReport") -> None:
        """`load` is the engine's after the step."""
        if not self._goes_on(times.began_at):
            return
        work, began_at = measure(batch, 0.0), self._began_at
        self._steps.append(
            StepRecord(
                began_s=times.began_at - began_at,
                scheduled_s=times.scheduled_at - began_at,
                executed_s=times.executed_at - began_at,
                ended_s=times.ended_at - began_at,
                prefills=len(batch.sequences) - work.batch,
                prefill_tokens=work.prefill_tokens,
                decodes=work.batch,
                context_tokens=work.context_tokens,
                running=load.running,
                waiting=load.waiting,
            )
        )
        self.is_on = self._limits is not None and len(self._steps) < self._limits.steps

    def saw_transfer(self, transfer: Transfer) -> None:
        now = self._clock.now()
        if not self._goes_on(now):
            return
        if len(self._transfers) == MAX_TRACE_TRANSFERS:
            self._left_out += 1
            return
        ended_s = now - self._began_at
        self._transfers.append(
            TransferRecord(
                kind=transfer.kind,
                peer=transfer.peer,
                began_s=max(0.0, ended_s - transfer.seconds),
                ended_s=ended_s,
                blocks=transfer.blocks,
                num_bytes=transfer.num_bytes,
                outcome=transfer.outcome,
            )
        )

    def _goes_on(self, now: float) -> bool:
        """Whether what happens at `now` still belongs to the recording."""
        if self.is_on and self._limits is not None:
            self.is_on = now - self._began_at <= self._limits.seconds
        return self.is_on
