"""The engines' own figures at scrape time, from their last load reports."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atomesh.observability.metrics import ENGINE
from atomesh.observability.running_totals import Counts, RunningTotals
from atomesh.protocol.kv_outcomes import OTHER, REFUSALS, TRANSFERS
from atomesh.protocol.worker import LoadReport, ModelDescription

_LABELS = ("model_name", "engine")
_COUNTERS = {
    "vllm:prefix_cache_queries": ("Prompt tokens looked up.", "prefix_cache_queries"),
    "vllm:prefix_cache_hits": ("Prompt tokens found.", "prefix_cache_hits"),
    "vllm:num_preemptions": ("Requests preempted.", "preemptions"),
    "atomesh_engine_steps": ("Steps of the engine.", "steps"),
    "atomesh_computed_prompt_tokens": ("Prompt tokens computed.", "prompt_tokens"),
}
_COUNTED_WORDS = {
    "atomesh_kv_transfers": ("Hand-offs that ended.", "outcome", "kv_transfers"),
    "atomesh_kv_refusals": ("Hand-offs refused.", "reason", "kv_refusals"),
}
_KNOWN_WORDS = {"kv_transfers": TRANSFERS, "kv_refusals": REFUSALS}


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One served model's state; `description` is None while nothing serves it.

    `load` is the sum over the engines behind it, `workers` has each one's own, by worker id.
    """

    model_name: str
    load: LoadReport
    description: ModelDescription | None
    workers: Mapping[str, LoadReport]


class EngineCollector(Collector):
    def __init__(self, read: Callable[[], Sequence[EngineReading]]) -> None:
        self._read = read
        self._totals: defaultdict[str, RunningTotals] = defaultdict(RunningTotals)

    def collect(self) -> Iterable[Metric]:
        readings = self._read()
        yield _gauge("vllm:num_requests_running", "Requests in the running batch.", readings, _running)
        yield _gauge("vllm:num_requests_waiting", "Requests waiting for the engine.", readings, _waiting)
        yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", readings, kv_usage)
        yield from self._count(readings)
        yield _kv_blocks(readings)
        yield _of_workers(
            GaugeMetricFamily, "atomesh_kv_pool_blocks", "KV blocks there are.", readings, _total
        )
        yield _of_workers(
            GaugeMetricFamily,
            "atomesh_kv_unaccounted_blocks",
            "Blocks in no state or in two, or held by nobody: 0, or the engine is at fault.",
            readings,
            _unaccounted,
        )
        yield _of_workers(
            CounterMetricFamily,
            "atomesh_kv_imbalances",
            "Looks after a step that found blocks unaccounted for.",
            readings,
            _imbalances,
        )
        yield _cache_config(readings)
        yield _lora(readings)

    def _count(self, readings: Sequence[EngineReading]) -> Iterable[Metric]:
        totals = {
            reading.model_name: self._totals[reading.model_name].update(
                {worker: _counts(load) for worker, load in reading.workers.items()}
            )
            for reading in readings
        }
        for name, (text, field) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for model, counts in totals.items():
                family.add_metric((model, ENGINE), counts.get(field, 0.0))
            yield family
        for name, (text, label, field) in _COUNTED_WORDS.items():
            family = CounterMetricFamily(name, text, labels=("model_name", label))
            for model, counts in totals.items():
                for word, count in _words(counts, field):
                    family.add_metric((model, word), count)
            yield family


def kv_usage(load: LoadReport) -> float:
    """Blocks that requests hold, as a share of the pool; cached ones are free to take."""
    if not load.total_blocks:
        return 0.0
    return 1.0 - (load.free_blocks + load.cached_blocks) / load.total_blocks


def _running(load: LoadReport) -> float:
    return load.running


def _waiting(load: LoadReport) -> float:
    return load.waiting


def _total(load: LoadReport) -> float:
    return load.total_blocks


def _unaccounted(load: LoadReport) -> float:
    return load.unaccounted_blocks


def _imbalances(load: LoadReport) -> float:
    return load.kv_imbalances


def _gauge(
    name: str, text: str, readings: Sequence[EngineReading], value: Callable[[LoadReport], float]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    for reading in readings:
        family.add_metric((reading.model_name, ENGINE), value(reading.load))
    return family


def _kv_blocks(readings: Sequence[EngineReading]) -> Metric:
    labels = ("model_name", "worker", "state")
    family = GaugeMetricFamily("atomesh_kv_blocks", "KV blocks by state.", labels=labels)
    for reading in readings:
        for worker, load in reading.workers.items():
            states = {
                "free": load.free_blocks,
                "cached": load.cached_blocks,
                "held": load.held_blocks,
                "reserved": load.reserved_blocks,
                "quarantined": load.quarantined_blocks,
            }
            for state, count in states.items():
                family.add_metric((reading.model_name, worker, state), count)
    return family


def _of_workers(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    readings: Sequence[EngineReading],
    value: Callable[[LoadReport], float],
) -> Metric:
    family = kind(name, text, labels=("model_name", "worker"))
    for reading in readings:
        for worker, load in reading.workers.items():
            family.add_metric((reading.model_name, worker), value(load))
    return family


def _counts(load: LoadReport) -> Counts:
    """All that only grows within a worker's life; those by word as field/word."""
    plain = {field: float(getattr(load, field)) for _, field in _COUNTERS.values()}
    by_word: Counter[str] = Counter()
    for field, known in _KNOWN_WORDS.items():
        for word, count in getattr(load, field).items():
            by_word[f"{field}/{word if word in known else OTHER}"] += count
    return plain | {word: float(count) for word, count in by_word.items()}


def _words(counts: Counts, field: str) -> Iterable[tuple[str, float]]:
    """The words are those that we know of, and OTHER."""
    prefix = f"{field}/"
    return sorted((name.removeprefix(prefix), n) for name, n in counts.items() if name.startswith(prefix))


def _cache_config(readings: Sequence[EngineReading]) -> Metric:
    labels = (*_LABELS, "block_size", "num_gpu_blocks", "cache_dtype")
    family = GaugeMetricFamily("vllm:cache_config_info", "Shape of the KV cache.", labels=labels)
    for reading in readings:
        if (model := reading.description) is not None:
            values = (reading.model_name, ENGINE, str(model.block_size), str(model.num_blocks), model.dtype)
            family.add_metric(values, 1.0)
    return family


def _lora(readings: Sequence[EngineReading]) -> Metric:
    labels = (*_LABELS, "max_lora", "running_lora_adapters", "waiting_lora_adapters")
    family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use; none are served.", labels=labels)
    for reading in readings:
        family.add_metric((reading.model_name, ENGINE, "0", "", ""), 1.0)
    return family
