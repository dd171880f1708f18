"""Sums of workers' counters that never fall, although workers restart, and are lost, and count from 0 again.

Prometheus takes a counter that falls for one that began anew, and would count all of the rest as new.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping

MAX_WORKERS = 1024

Counts = Mapping[str, float]


class RunningTotals:
    """Of one model; `counts` by worker are what each one says now, by any name."""

    def __init__(self, max_workers: int = MAX_WORKERS) -> None:
        self._max_workers = max_workers
        self._ended: Counter[str] = Counter()  # of lives that are over
        self._last: OrderedDict[str, Counts] = OrderedDict()

    def update(self, workers: Mapping[str, Counts]) -> Counts:
        """The totals now. A worker that is missing keeps what it said last."""
        for worker, counts in workers.items():
            self._hear(worker, counts)
        while len(self._last) > self._max_workers:
            _, counts = self._last.popitem(last=False)
            self._ended.update(counts)
        totals = Counter(self._ended)
        for counts in self._last.values():
            totals.update(counts)
        return totals

    def _hear(self, worker: str, counts: Counts) -> None:
        last = self._last.pop(worker, {})
        if any(counts.get(name, 0.0) < count for name, count in last.items()):
            self._ended.update(last)
        self._last[worker] = dict(counts)
