"""The lines before the workers at scrape time. Tenants are no labels: their names are for the operator."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class LineReading:
    """One model's line; `refusals` counts by reason."""

    model: str
    num_waiting: int
    refusals: Mapping[str, int]


class AdmissionCollector(Collector):
    def __init__(self, read: Callable[[], Sequence[LineReading]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        waiting = GaugeMetricFamily(
            "atomesh_queued_requests",
            "Requests in the gateway that wait for a worker.",
            labels=["model_name"],
        )
        refusals = CounterMetricFamily(
            "atomesh_admission_refusals",
            "Requests that were not admitted, by reason.",
            labels=["model_name", "reason"],
        )
        for line in self._read():
            waiting.add_metric([line.model], line.num_waiting)
            for reason, count in sorted(line.refusals.items()):
                refusals.add_metric([line.model, reason], count)
        return waiting, refusals
