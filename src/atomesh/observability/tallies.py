"""Counters and histograms of one thread: prometheus_client's own take a lock for each number they touch."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

Labels = tuple[str, ...]


class Count:
    """One series of a TallyCounter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Spread:
    """One series of a TallyHistogram."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' upper ones, in ascending order."""
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, amount: float) -> None:
        self.sum += amount
        self._counts[bisect_left(self._bounds, amount)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus writes a histogram: each bound, and how many are not above it."""
        total, rows = 0, []
        for bound, count in zip((*self._bounds, inf), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == inf else str(bound), float(total)))
        return rows


class TallyCounter(Collector):
    """`name` without _total."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._counts: dict[Labels, Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> Count:
        """The series of these labels, made when it is first asked for."""
        return self._counts.setdefault(values, Count())

    def forget(self, first: str) -> None:
        """The series whose first label this is."""
        self._counts = {labels: one for labels, one in self._counts.items() if labels[0] != first}

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count.value)
        yield family


class TallyHistogram(Collector):
    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        """`buckets` are upper bounds in ascending order, without the infinite one."""
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._buckets = tuple(buckets)
        self._spreads: dict[Labels, Spread] = {}
        registry.register(self)

    def labels(self, *values: str) -> Spread:
        """The series of these labels, made when it is first asked for."""
        return self._spreads.setdefault(values, Spread(self._buckets))

    def forget(self, first: str) -> None:
        """The series whose first label this is."""
        self._spreads = {labels: one for labels, one in self._spreads.items() if labels[0] != first}

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, spread in self._spreads.items():
            family.add_metric(values, spread.cumulative(), spread.sum)
        yield family
