"""The mesh's own figures at scrape time: what the gateway knows of its workers and of what it tried again."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

STATES = ("connecting", "ready", "silent", "draining", "lost")
WORKER_REFUSALS = (
    "registration_secret",
    "registration_nonce",
    "hung_up",
    "greeting",
    "secret",
    "mac",
    "size",
    "message",
)


@dataclass(frozen=True, slots=True)
class MeshReading:
    """`workers` counts by state; `retries` and `migrations` by model; `worker_refusals` by reason."""

    workers: Mapping[str, int]
    retries: Mapping[str, int]
    migrations: Mapping[str, int]
    tickets_minted: int
    tickets_open: int
    retries_refused: int = 0
    prompts_barred: int = 0
    barred_refused: int = 0
    worker_refusals: Mapping[str, int] = field(default_factory=dict)


class MeshCollector(Collector):
    def __init__(self, read: Callable[[], MeshReading]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        reading = self._read()
        workers = GaugeMetricFamily("atomesh_workers", "Workers by state.", labels=("state",))
        for state in STATES:
            workers.add_metric((state,), reading.workers.get(state, 0))
        yield workers
        yield _by_model("atomesh_retries", "Requests sent once more before a token.", reading.retries)
        yield _by_model("atomesh_migrations", "Answers that went on elsewhere.", reading.migrations)
        yield CounterMetricFamily(
            "atomesh_retries_refused", "Retries beyond the retry budget.", value=reading.retries_refused
        )
        yield CounterMetricFamily(
            "atomesh_prompts_quarantined", "Prompts that workers died of.", value=reading.prompts_barred
        )
        yield CounterMetricFamily(
            "atomesh_quarantine_refusals", "Requests with such a prompt.", value=reading.barred_refused
        )
        yield _worker_refusals(reading.worker_refusals)
        yield CounterMetricFamily("atomesh_tickets_minted", "Hand-offs begun.", value=reading.tickets_minted)
        yield GaugeMetricFamily(
            "atomesh_tickets_open", "Hand-offs of requests that are not over.", value=reading.tickets_open
        )


def _worker_refusals(counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "atomesh_worker_refusals", "Times that what should be a worker was none of ours.", labels=("reason",)
    )
    for reason in WORKER_REFUSALS:
        family.add_metric((reason,), counts.get(reason, 0))
    return family


def _by_model(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("model_name",))
    for model, count in counts.items():
        family.add_metric((model,), count)
    return family
