"""What the gateway knows of the workers' KV, and how it came by it, at scrape time."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

INDEXES = ("exact", "approximate")
EVENTS = ("stored", "removed", "cleared")
SNAPSHOTS = ("requested", "taken", "refused")
LEFT_OUT = ("ambiguous", "elsewhere", "group", "keys", "parent", "tokens", "unsaid")
ByIndex = Mapping[str, int]
_COUNTERS = {
    "gaps": ("atomesh_kv_event_gaps", "Batches of KV events that did not follow on the one before."),
    "mismatches": ("atomesh_kv_digest_mismatches", "Digests of workers that were not what had been counted."),
    "losses": ("atomesh_kv_event_losses", "Times that all known of an engine had to be forgotten."),
    "replays": ("atomesh_kv_event_replays", "Replays of KV events that engines were asked for."),
    "malformed": ("atomesh_kv_events_malformed", "Batches and events of engines that could not be read."),
}


@dataclass(frozen=True, slots=True)
class KVIndexReading:
    """`worker_blocks` by index and worker id; `blocks` counts each block of an index once; what is by index,
    event, outcome or reason has the keys above, and nothing where there was none."""

    worker_blocks: Mapping[str, Mapping[str, int]]
    blocks: ByIndex
    expired: ByIndex
    evicted: ByIndex
    events: Mapping[str, int] = field(default_factory=dict)
    snapshots: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    gaps: int = 0
    mismatches: int = 0
    losses: int = 0
    replays: int = 0
    malformed: int = 0


class KVIndexCollector(Collector):
    def __init__(self, read: Callable[[], KVIndexReading]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        reading = self._read()
        yield _worker_blocks(reading)
        text = "Different blocks in an index, and of workers just gone."
        size = GaugeMetricFamily("atomesh_kv_index_size_blocks", text, labels=("index",))
        for index in INDEXES:
            size.add_metric((index,), reading.blocks[index])
        yield size
        yield _counted(
            "atomesh_kv_predicted_blocks_expired",
            "Blocks that were expected of a dispatched prompt, and forgotten unconfirmed.",
            ("index", INDEXES),
            reading.expired,
        )
        yield _counted(
            "atomesh_kv_index_evicted_blocks",
            "Blocks that the index had no room for any more.",
            ("index", INDEXES),
            reading.evicted,
        )
        yield _counted("atomesh_kv_events", "KV events applied.", ("event", EVENTS), reading.events)
        yield _counted(
            "atomesh_kv_snapshots",
            "Snapshots of what a worker holds: asked for, in use, not what its digest says.",
            ("outcome", SNAPSHOTS),
            reading.snapshots,
        )
        yield _counted(
            "atomesh_kv_blocks_left_out",
            "Blocks that other engines told and that were not indexed.",
            ("reason", LEFT_OUT),
            reading.left_out,
        )
        for name, (metric, text) in _COUNTERS.items():
            yield CounterMetricFamily(metric, text, value=getattr(reading, name))


def _worker_blocks(reading: KVIndexReading) -> Metric:
    text = "Blocks that a worker is known or expected to hold."
    family = GaugeMetricFamily("atomesh_kv_index_blocks", text, labels=("worker", "index"))
    for index in INDEXES:
        for worker, count in reading.worker_blocks[index].items():
            family.add_metric((worker, index), count)
    return family


def _counted(name: str, text: str, label: tuple[str, tuple[str, ...]], counts: Mapping[str, int]) -> Metric:
    """`label` is its name, and the words that there are."""
    family = CounterMetricFamily(name, text, labels=(label[0],))
    for word in label[1]:
        family.add_metric((word,), counts.get(word, 0))
    return family
