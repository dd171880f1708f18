"""A circuit breaker: who fails again and again gets nothing for a while, then one probe.

    closed ── MAX_FAULTS in a row ──▶ open ── the back-off is over ──▶ half-open
       ▲                               ▲                                  │
       │                               ╰── it fails: twice the back-off ──┤
       ╰───────────────────────── the probe succeeds ─────────────────────╯

Frozen: whoever owns one replaces it. Times are in seconds on the owner's clock.
"""

from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Literal

from atomesh.errors import AtomeshError, DeadlineExceededError, UnsupportedFeatureError

MAX_FAULTS = 5
FIRST_BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 30.0

BreakerState = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class Breaker:
    """`faults` are those since the last success; `retry_at` is None while it is closed.

    `probes` are under way: what was sent since it opened and has not ended.
    """

    faults: int = 0
    retry_at: float | None = None
    probes: int = 0

    def state(self, now: float) -> BreakerState:
        if self.retry_at is None:
            return "closed"
        return "open" if now < self.retry_at else "half-open"

    def lets_through(self, now: float) -> bool:
        """Half-open, one at a time."""
        return self.retry_at is None or (now >= self.retry_at and not self.probes)

    def why_not(self, now: float) -> str:
        """For people, of one that lets nothing through."""
        if self.retry_at is not None and now < self.retry_at:
            return f"failed {self.faults} times in a row: tried again in {self.retry_at - now:.1f} s"
        return f"failed {self.faults} times in a row: a probe is under way"

    def failed(self, now: float) -> "Breaker":
        """What was let through has come to a fault of the worker's."""
        faults = self.faults + 1
        if faults < MAX_FAULTS:
            return replaced(self, faults=faults)
        return replaced(self, faults=faults, retry_at=now + _back_off_s(faults))

    def succeeded(self) -> "Breaker":
        return Breaker()


CLOSED = Breaker()


def is_fault(error: AtomeshError) -> bool:
    """Whether an error is the worker's own: no refusal of the request, and nothing that time did."""
    is_others = isinstance(error, UnsupportedFeatureError | DeadlineExceededError)
    return error.status >= 500 and not is_others


def _back_off_s(faults: int) -> float:
    doublings = min(faults - MAX_FAULTS, 16)
    return min(FIRST_BACK_OFF_S * 2.0**doublings, LONGEST_BACK_OFF_S)
