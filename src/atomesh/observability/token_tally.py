"""What is counted for every token, for two additions; each of prometheus_client's own takes a lock."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class TokenTally:
    """One served model's. To be told in one thread."""

    def __init__(self, buckets: Sequence[float]) -> None:
        """`buckets` are upper bounds, in seconds, in ascending order."""
        self.tokens = 0
        self.sum_s = 0.0
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)

    def waited(self, seconds: float) -> None:
        """Between two steps of an answer."""
        self.sum_s += seconds
        self._counts[bisect_left(self._bounds, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus writes a histogram: how many are not above each bound."""
        total, rows = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return rows


class TallyCollector(Collector):
    """All models' tallies as metrics."""

    def __init__(self, labels: Sequence[str], tallies: Mapping[tuple[str, ...], TokenTally]) -> None:
        """`tallies` by the values of the `labels`; may grow."""
        self._labels = tuple(labels)
        self._tallies = tallies

    def collect(self) -> Iterable[Metric]:
        tokens = CounterMetricFamily("vllm:generation_tokens", "Tokens generated.", labels=self._labels)
        waits = HistogramMetricFamily(
            "vllm:inter_token_latency_seconds", "Between two tokens of a request.", labels=self._labels
        )
        for values, tally in self._tallies.items():
            tokens.add_metric(values, tally.tokens)
            waits.add_metric(values, tally.cumulative(), tally.sum_s)
        yield tokens
        yield waits
