"""The one door to the time: shells read a Clock and hand `now` to what decides."""

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on a monotonic scale; only differences mean anything."""
        ...


class MonotonicClock:
    def now(self) -> float:
        return time.monotonic()
