"""What is to be done at a time, by whoever holds the clock."""

import heapq
import itertools
from collections.abc import Callable

Action = Callable[[], None]


class Timers:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Action]] = []
        self._order = itertools.count()

    def at(self, time: float, action: Action) -> None:
        """`action` must do no harm when its reason has gone: nothing takes it back."""
        heapq.heappush(self._waiting, (time, next(self._order), action))

    def next(self) -> float | None:
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float) -> list[Action]:
        due: list[Action] = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heapq.heappop(self._waiting)[2])
        return due
