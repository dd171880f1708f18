"""The servers of text at scrape time: what each of a model's was asked, and whether it is trusted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class RelayReading:
    """One model's. `running` is by worker id, `outcomes` by worker id and one of ok, failed, aborted."""

    model: str
    running: Mapping[str, int]
    outcomes: Mapping[tuple[str, str], int]


class RelayCollector(Collector):
    def __init__(
        self, read: Callable[[], Sequence[RelayReading]], open_breakers: Callable[[], Mapping[str, bool]]
    ) -> None:
        """`open_breakers` has every server by its worker id."""
        self._read = read
        self._open_breakers = open_breakers

    def collect(self) -> Iterable[Metric]:
        running = GaugeMetricFamily(
            "atomesh_relayed_requests_running",
            "Requests in text that a server has.",
            labels=("model_name", "worker"),
        )
        ended = CounterMetricFamily(
            "atomesh_relayed_requests",
            "Requests in text that a server was sent, by what came of them.",
            labels=("model_name", "worker", "outcome"),
        )
        for reading in self._read():
            for worker, count in sorted(reading.running.items()):
                running.add_metric((reading.model, worker), count)
            for (worker, outcome), count in sorted(reading.outcomes.items()):
                ended.add_metric((reading.model, worker, outcome), count)
        breakers = GaugeMetricFamily(
            "atomesh_relay_breaker_open", "Whether a server's circuit breaker is open.", labels=("worker",)
        )
        for worker, is_open in sorted(self._open_breakers().items()):
            breakers.add_metric((worker,), float(is_open))
        return running, ended, breakers
