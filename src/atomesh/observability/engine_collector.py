"""The engine's own figures at scrape time: from its last load report, never from a counter kept beside it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atomesh.observability.metrics import ENGINE
from atomesh.protocol.worker import LoadReport, ModelDescription

_LABELS = ("model_name", "engine")


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

    def collect(self) -> Iterable[Metric]:
        readings = self._read()
        yield _gauge("vllm:num_requests_running", "Requests in the running batch.", readings, _running)
        yield _gauge("vllm:num_requests_waiting", "Requests waiting for the engine.", readings, _waiting)
        yield _gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", readings, kv_usage)
        yield _counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", readings, _queries)
        yield _counter("vllm:prefix_cache_hits", "Prompt tokens found.", readings, _hits)
        yield _counter("vllm:num_preemptions", "Requests preempted.", readings, _preemptions)
        yield _counter("atomesh_engine_steps", "Steps of the engine.", readings, _steps)
        yield _counter("atomesh_computed_prompt_tokens", "Prompt tokens computed.", readings, _computed)
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
        yield _by_word("atomesh_kv_transfers", "Hand-offs that ended.", "outcome", readings, _transfers)
        yield _by_word("atomesh_kv_refusals", "Hand-offs refused.", "reason", readings, _refusals)
        yield _cache_config(readings)
        yield _lora()


def kv_usage(load: LoadReport) -> float:
    """Blocks that requests hold, as a share of the pool; cached ones are free to take."""
    if not load.total_blocks:
        return 0.0
    return 1.0 - (load.free_blocks + load.cached_blocks) / load.total_blocks


def _running(load: LoadReport) -> float:
    return load.running


def _waiting(load: LoadReport) -> float:
    return load.waiting


def _queries(load: LoadReport) -> float:
    return load.prefix_cache_queries


def _hits(load: LoadReport) -> float:
    return load.prefix_cache_hits


def _preemptions(load: LoadReport) -> float:
    return load.preemptions


def _steps(load: LoadReport) -> float:
    return load.steps


def _computed(load: LoadReport) -> float:
    return load.prompt_tokens


def _total(load: LoadReport) -> float:
    return load.total_blocks


def _unaccounted(load: LoadReport) -> float:
    return load.unaccounted_blocks


def _imbalances(load: LoadReport) -> float:
    return load.kv_imbalances


def _transfers(load: LoadReport) -> Mapping[str, int]:
    return load.kv_transfers


def _refusals(load: LoadReport) -> Mapping[str, int]:
    return load.kv_refusals


def _gauge(
    name: str, text: str, readings: Sequence[EngineReading], value: Callable[[LoadReport], float]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=_LABELS)
    for reading in readings:
        family.add_metric((reading.model_name, ENGINE), value(reading.load))
    return family


def _counter(
    name: str, text: str, readings: Sequence[EngineReading], value: Callable[[LoadReport], float]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=_LABELS)
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


def _by_word(
    name: str,
    text: str,
    label: str,
    readings: Sequence[EngineReading],
    counts: Callable[[LoadReport], Mapping[str, int]],
) -> Metric:
    """One counter a word; the words are the engine's own, and few."""
    family = CounterMetricFamily(name, text, labels=("model_name", label))
    for reading in readings:
        for word, count in counts(reading.load).items():
            family.add_metric((reading.model_name, word), count)
    return family


def _cache_config(readings: Sequence[EngineReading]) -> Metric:
    labels = (*_LABELS, "block_size", "num_gpu_blocks", "cache_dtype")
    family = GaugeMetricFamily("vllm:cache_config_info", "Shape of the KV cache.", labels=labels)
    for reading in readings:
        if (model := reading.description) is not None:
            values = (reading.model_name, ENGINE, str(model.block_size), str(model.num_blocks), model.dtype)
            family.add_metric(values, 1.0)
    return family


def _lora() -> Metric:
    labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
    family = GaugeMetricFamily("vllm:lora_requests_info", "Adapters in use; none are served.", labels=labels)
    family.add_metric(("0", "", ""), 1.0)
    return family
