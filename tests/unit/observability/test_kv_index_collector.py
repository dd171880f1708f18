"""The index in figures: what a script of events, losses and dispatches leads to, exactly."""

import hashlib

from prometheus_client import CollectorRegistry

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.gateway.index_reading import read_index
from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.combined import CombinedIndex
from atomesh.mesh.kv_index.foreign import Translator
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.ordering import EventFeed
from atomesh.observability.kv_index_collector import EVENTS, INDEXES, LEFT_OUT, SNAPSHOTS, KVIndexCollector
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KVEvents,
    KVSnapshot,
    add_to_digest,
)
from atomesh.protocol.vllm_kv_events import ForeignBatch, ForeignStored
from atomesh.testing.mesh_snapshots import worker_snapshot

TTL_S, LIFETIME_S = 10.0, 100.0


def blocks(*numbers: int) -> list[BlockHash]:
    return [BlockHash(hashlib.blake2b(bytes([one]), digest_size=16).digest()) for one in numbers]


class Scraped:
    """A gateway's index, for our worker `ours` and the foreign ones `theirs` and `silent`."""

    def __init__(self, max_blocks: int = 100) -> None:
        self.index = CombinedIndex(KVIndex(max_blocks, TTL_S), ApproximateIndex(LIFETIME_S, max_blocks))
        self.workers = WorkerRegistry(lambda _: None)
        for name in ("ours", "theirs", "silent"):
            description = worker_snapshot(name).description
            assert description is not None
            self.workers.expect(name)
            self.workers.connected(name, description, 0.0)
        self.registry = CollectorRegistry()
        self.registry.register(KVIndexCollector(lambda: read_index(self.index, self.workers)))

    def incarnation(self, name: str) -> str:
        found = self.workers.incarnation(name)
        assert found is not None
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"atomesh_kv_{name}", labels)

    def by(self, name: str, label: str, words: tuple[str, ...]) -> dict[str, float | None]:
        """Of each word that has been counted."""
        counts = {word: self.value(name, **{label: word}) for word in words}
        return {word: count for word, count in counts.items() if count}


def test_a_worker_s_events_gaps_mismatches_and_snapshots_are_counted() -> None:
    scraped = Scraped()
    ours = scraped.incarnation("ours")
    scraped.index.exact.join(ours)
    feed = EventFeed(scraped.index.exact, ours, lambda: None)
    digest = add_to_digest(0, blocks(1, 2, 3))
    feed.begin(0.0)
    feed.hear_snapshot(KVSnapshot(0, 0, [], is_last=True), 0.0)
    feed.hear(KVEvents(1, digest, [BlocksStored(b"", blocks(1, 2, 3))]), 0.0)
    feed.hear(KVEvents(2, add_to_digest(0, blocks(1)), [BlocksRemoved(blocks(2, 3))]), 0.0)
    feed.hear(KVEvents(5, digest, [BlocksStored(b"", blocks(4))]), 0.0)  # 3 and 4 are missing
    feed.hear_snapshot(KVSnapshot(5, 7, blocks(1), is_last=True), 0.0)
    feed.hear_snapshot(KVSnapshot(5, add_to_digest(0, blocks(1, 4)), blocks(1, 4), is_last=True), 0.0)
    feed.hear(KVEvents(5, 99), 0.0)

    assert scraped.by("events_total", "event", EVENTS) == {"stored": 1, "removed": 1}
    assert scraped.by("snapshots_total", "outcome", SNAPSHOTS) == {"requested": 3, "taken": 2, "refused": 1}
    assert (scraped.value("event_gaps_total"), scraped.value("digest_mismatches_total")) == (1, 1)
    assert scraped.value("index_blocks", worker="ours", index="exact") == 2
    assert scraped.by("index_size_blocks", "index", INDEXES) == {"exact": 2}


def test_a_foreign_engine_moves_to_the_exact_index_with_its_first_block() -> None:
    scraped = Scraped()
    theirs, hasher = scraped.incarnation("theirs"), BlockHasher(b"secret", "model", 2)
    scraped.index.approximate.join(theirs, 10)
    scraped.index.predict(theirs, blocks(1, 2), 0.0)
    feed = ForeignFeed(scraped.index, theirs, Translator(hasher))
    unsaid = ForeignStored([70], [1, 2], 2)
    stored = ForeignStored([71, 72], [1, 2, 3, 4], 2, extra_keys=[None, None])
    feed.hear(0, ForeignBatch(1.0, (unsaid,)))
    assert scraped.value("index_blocks", worker="theirs", index="approximate") == 2
    assert scraped.value("index_blocks", worker="theirs", index="exact") is None

    feed.hear(1, ForeignBatch(2.0, (stored,)))
    assert scraped.value("index_blocks", worker="theirs", index="approximate") is None
    assert scraped.value("index_blocks", worker="theirs", index="exact") == 2
    assert scraped.by("blocks_left_out_total", "reason", LEFT_OUT) == {"unsaid": 1}
    feed.resume(9, ForeignBatch(3.0, ()))
    assert scraped.value("event_losses_total") == 1
    assert scraped.value("index_blocks", worker="theirs", index="exact") == 0
    assert scraped.by("events_total", "event", EVENTS) == {"stored": 1, "cleared": 1}


def test_blocks_that_were_expected_in_vain_or_had_no_room_are_counted() -> None:
    scraped = Scraped(max_blocks=4)
    ours, silent = scraped.incarnation("ours"), scraped.incarnation("silent")
    scraped.index.exact.join(ours)
    scraped.index.approximate.join(silent, 10)
    scraped.index.predict(ours, blocks(1, 2, 3), 0.0)
    scraped.index.predict(silent, blocks(1, 2), 0.0)
    scraped.index.exact.apply(ours, [BlocksStored(b"", blocks(1))])
    scraped.index.match(blocks(1), TTL_S)
    assert scraped.by("predicted_blocks_expired_total", "index", INDEXES) == {"exact": 2}

    scraped.index.match(blocks(1), LIFETIME_S)
    scraped.index.drop(silent)
    assert scraped.by("predicted_blocks_expired_total", "index", INDEXES) == {"exact": 2, "approximate": 2}
    assert scraped.by("index_evicted_blocks_total", "index", INDEXES) == {}
    scraped.index.exact.apply(ours, [BlocksStored(b"", blocks(4, 5, 6, 7))])
    assert scraped.by("index_evicted_blocks_total", "index", INDEXES) == {"exact": 1}
    assert scraped.by("index_size_blocks", "index", INDEXES) == {"exact": 4}
    scraped.index.exact.apply(ours, [CacheCleared()])
    assert scraped.value("index_blocks", worker="ours", index="exact") == 0


def test_a_worker_that_nobody_expects_any_more_has_no_series() -> None:
    scraped = Scraped()
    scraped.index.exact.join(scraped.incarnation("ours"))
    scraped.workers.forget("ours")

    assert scraped.value("index_blocks", worker="ours", index="exact") is None
    assert scraped.value("event_replays_total") == scraped.value("events_malformed_total") == 0
