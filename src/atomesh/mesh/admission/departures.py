"""How many requests the workers finish in a second, while they have any: what a place in line is worth."""

from math import exp

MEMORY_S = 10.0
LEAST_BUSY_S = 0.1


class Departures:
    """Exponentially forgotten over MEMORY_S of busy time; idle time does not count."""

    def __init__(self) -> None:
        self._count = 0.0
        self._busy_s = 0.0
        self._running = 0
        self._seen_at = 0.0

    def started(self, now: float) -> None:
        self._pass_time(now)
        self._running += 1

    def finished(self, now: float) -> None:
        self._pass_time(now)
        self._running -= 1
        self._count += 1.0

    def per_second(self, now: float) -> float | None:
        """None while too little has been seen."""
        self._pass_time(now)
        if self._busy_s < LEAST_BUSY_S or self._count <= 0.0:
            return None
        return self._count / self._busy_s

    def _pass_time(self, now: float) -> None:
        seconds, self._seen_at = now - self._seen_at, now
        if self._running == 0 or seconds <= 0.0:
            return
        kept = exp(-seconds / MEMORY_S)
        self._count *= kept
        self._busy_s = self._busy_s * kept + MEMORY_S * (1.0 - kept)
