"""How seldom to log what strangers can make happen as often as they like."""

from atomesh.clock import Clock

INTERVAL_S = 1.0


class SparseLog:
    """`admit` is asked before each line."""

    def __init__(self, clock: Clock, interval_s: float = INTERVAL_S) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._next = float("-inf")
        self._left_out = 0

    def admit(self) -> int | None:
        """How many lines have been left out since the last one; None: leave this one out as well."""
        now = self._clock.now()
        if now < self._next:
            self._left_out += 1
            return None
        self._next = now + self._interval_s
        left_out, self._left_out = self._left_out, 0
        return left_out
