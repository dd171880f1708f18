"""How far placement's predictions are off, each declared once. Labels: none, so no series can multiply."""

from collections.abc import Sequence

from prometheus_client import Counter, Histogram
from prometheus_client.registry import Collector

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_ERROR_BUCKETS = (*(-bound for bound in reversed(_SECONDS)), 0.0, *_SECONDS)


class PlacementMetrics:
    """An error is what was measured less what was predicted; its histogram has no sum: hence both."""

    def __init__(self) -> None:
        self._ttft = Histogram(
            "atomesh_placement_ttft_error_seconds",
            "Time from placement to the first token, measured less predicted.",
            buckets=_ERROR_BUCKETS,
            registry=None,
        )
        self._transfer = Histogram(
            "atomesh_placement_transfer_error_seconds",
            "What decode waited for KV, measured less predicted.",
            buckets=_ERROR_BUCKETS,
            registry=None,
        )
        self._fetch = Histogram(
            "atomesh_placement_fetch_error_seconds",
            "What prefill waited for another worker's prefix, measured less predicted.",
            buckets=_ERROR_BUCKETS,
            registry=None,
        )
        self._ttft_predicted = Counter(
            "atomesh_placement_ttft_predicted_seconds", "Sum of the predicted times.", registry=None
        )
        self._ttft_measured = Counter(
            "atomesh_placement_ttft_measured_seconds", "Sum of the measured times.", registry=None
        )
        self._predicted = Counter(
            "atomesh_placement_cached_tokens_predicted",
            "Prompt tokens that placement expected to find cached.",
            registry=None,
        )
        self._measured = Counter(
            "atomesh_placement_cached_tokens_measured",
            "Prompt tokens that were found cached, of the same requests.",
            registry=None,
        )

    @property
    def collectors(self) -> Sequence[Collector]:
        ttft = self._ttft, self._ttft_predicted, self._ttft_measured
        return *ttft, self._transfer, self._fetch, self._predicted, self._measured

    def ttft(self, predicted_s: float, measured_s: float) -> None:
        self._ttft.observe(measured_s - predicted_s)
        self._ttft_predicted.inc(predicted_s)
        self._ttft_measured.inc(measured_s)

    def transfer(self, predicted_s: float, measured_s: float) -> None:
        self._transfer.observe(measured_s - predicted_s)

    def fetch(self, predicted_s: float, measured_s: float) -> None:
        self._fetch.observe(measured_s - predicted_s)

    def cached(self, predicted: int, measured: int) -> None:
        self._predicted.inc(predicted)
        self._measured.inc(measured)
