"""Named places where a test makes something go wrong, in a process started with faults enabled.

Whoever owns a place asks `take` (or `fires`) each time it comes by; whoever tests arms it beforehand. Arming
and asking may happen in different threads.
"""

from collections import deque
from collections.abc import Mapping

from atomesh.errors import InvalidRequestError, PermissionDeniedError

FAULT_POINTS: Mapping[str, str] = {
    "kv_drop_push": "sender: a push is never sent and ends at its deadline",
    "kv_delay_push": "sender: a push is sent the argument's seconds later",
    "kv_partial_push": "sender: only the first half of a push's blocks goes, and it ends as if all had gone",
    "kv_flip_bit": "sender: one bit of a pushed block is flipped after its checksum was taken",
    "kv_drop_commit": "prefill: the commit is never sent",
    "kv_refuse_reserve": "decode: a reservation is refused as if the pool were full",
    "kv_drop_events": "engine: a batch of KV events is told to no gateway",
    "step_delay": "engine: a step takes the argument's seconds longer",
    "step_fail": "engine: a step raises, and again for each of its sequences alone",
}
MAX_SHOTS = 100_000


def check_shots(name: str, count: int) -> None:
    """Raises InvalidRequestError for a point that there is not, and for a count out of bounds."""
    if name not in FAULT_POINTS:
        raise InvalidRequestError(
            f"there is no fault point {name[:200]!r}; there are {', '.join(FAULT_POINTS)}", param="point"
        )
    if not 0 <= count <= MAX_SHOTS:
        raise InvalidRequestError(f"count is {count}; it must lie in 0 … {MAX_SHOTS}", param="count")


class FaultPoints:
    """What is armed. A point fires once for each shot it was armed with, then no more."""

    def __init__(self) -> None:
        self._shots: dict[str, deque[float]] = {name: deque() for name in FAULT_POINTS}

    def arm(self, name: str, count: int = 1, argument: float = 0.0) -> None:
        """`count` shots in place of what is left; 0 disarms. InvalidRequestError as of `check_shots`."""
        check_shots(name, count)
        self._shots[name] = deque([argument] * count)

    def take(self, name: str) -> float | None:
        """The argument of a shot that fires now, or None."""
        try:
            return self._shots[name].popleft()
        except IndexError:
            return None

    def fires(self, name: str) -> bool:
        return self.take(name) is not None


class NoFaults(FaultPoints):
    """Of a process in which nothing goes wrong on purpose."""

    def arm(self, name: str, count: int = 1, argument: float = 0.0) -> None:
        raise PermissionDeniedError("fault points are off; start the server with --enable-faults")

    def take(self, name: str) -> float | None:
        return None
