"""How many requests may be sent once more: a share of those that came lately, and a few besides.

Workers that refuse because they have too much to do must not be given each request twice. A worker's death is
no such refusal: what it leaves behind is bounded by what it had, and is not charged.
"""

from collections import deque
from dataclasses import dataclass

WINDOW_S = 10.0
SHARE = 0.2
FLOOR = 5


@dataclass(slots=True)
class _Second:
    began_at: float
    requests: int = 0
    retries: int = 0


class RetryBudget:
    """Within `window_s`, at most `floor` retries and a `share` of the requests; `refused` counts the rest."""

    def __init__(self, share: float = SHARE, floor: int = FLOOR, window_s: float = WINDOW_S) -> None:
        self._share = share
        self._floor = floor
        self._window_s = window_s
        self._seconds: deque[_Second] = deque()
        self._requests = 0
        self._retries = 0
        self.spent = 0
        self.refused = 0

    def note_request(self, now: float) -> None:
        self._second(now).requests += 1
        self._requests += 1

    def try_spend(self, now: float) -> bool:
        """Whether one more retry is to be had; if so it is spent."""
        second = self._second(now)
        if self._retries + 1 > self._floor + self._share * self._requests:
            self.refused += 1
            return False
        second.retries += 1
        self._retries += 1
        self.spent += 1
        return True

    def _second(self, now: float) -> _Second:
        """The present one, once those that are too old are forgotten."""
        seconds = self._seconds
        while seconds and now - seconds[0].began_at >= self._window_s:
            old = seconds.popleft()
            self._requests -= old.requests
            self._retries -= old.retries
        if not seconds or now - seconds[-1].began_at >= 1.0:
            seconds.append(_Second(now))
        return seconds[-1]
