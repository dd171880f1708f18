"""What a worker notes of its steps while somebody wants to see them: bounded, in seconds of its own clock.

All times count from the moment at which the recording began.
"""

from typing import Literal

import msgspec

from atomesh.errors import InvalidRequestError

MAX_TRACE_S = 300.0
MAX_TRACE_STEPS = 10_000
MAX_TRACE_TRANSFERS = 10_000
DEFAULT_TRACE_S = 10.0


class TraceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The recording ends by itself after so many seconds, or so many steps, whichever comes first."""

    seconds: float = DEFAULT_TRACE_S
    steps: int = MAX_TRACE_STEPS

    def check(self) -> None:
        """Raises InvalidRequestError."""
        if not 0.0 < self.seconds <= MAX_TRACE_S:  # NaN is neither
            raise InvalidRequestError(
                f"seconds is {self.seconds:g}; it must lie in (0, {MAX_TRACE_S:g}]", param="seconds"
            )
        if not 1 <= self.steps <= MAX_TRACE_STEPS:
            raise InvalidRequestError(
                f"steps is {self.steps}; it must lie in [1, {MAX_TRACE_STEPS}]", param="steps"
            )


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """One step: schedule, execute and update, each from the end of the one before it.

    Of the batch, `prefills` sequences compute `prefill_tokens` tokens of their prompts, `decodes` one token
    each, after `context_tokens` in all; `running` sequences had a seat and `waiting` had none.
    """

    began_s: float
    scheduled_s: float
    executed_s: float
    ended_s: float
    prefills: int
    prefill_tokens: int
    decodes: int
    context_tokens: int
    running: int
    waiting: int


class TransferRecord(msgspec.Struct, frozen=True, array_like=True):
    """Blocks on their way to a peer, from push to acknowledgement, or from one, as the receiver measures."""

    kind: Literal["push", "receive"]
    peer: str
    began_s: float
    ended_s: float
    blocks: int
    num_bytes: int | None
    outcome: str


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """`began_ago_s` is how long before this was sent the recording began: clocks are not compared.

    `is_cut` says that it had ended by itself, at one of its limits.
    """

    began_ago_s: float
    is_cut: bool
    steps: list[StepRecord]
    transfers: list[TransferRecord]
    transfers_left_out: int = 0
