"""Virtual time: what is to happen at which moment, in order, and nothing between two moments."""

import heapq
from collections.abc import Callable


class EventLoop:
    """A `Clock` that moves only when the next event is taken. Simultaneous events keep their order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._is_stopped = False

    def now(self) -> float:
        return self._now

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Raises ValueError for a time that has passed."""
        if time < self._now:
            raise ValueError(f"an event is set for {time} s, but it is {self._now} s already")
        self._num_events += 1
        heapq.heappush(self._events, (time, self._num_events, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.at(self._now + seconds, action)

    def run(self) -> None:
        """Until nothing is left to happen, or until `stop`."""
        while self._events and not self._is_stopped:
            self._now, _, action = heapq.heappop(self._events)
            action()

    def stop(self) -> None:
        """Let nothing more happen."""
        self._is_stopped = True
