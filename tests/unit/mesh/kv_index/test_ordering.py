"""A worker's feed: in step whatever is lost, late or twice."""

import hashlib
import random

from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.kv_index.ordering import PATIENCE_S, EventFeed
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KVEvent,
    KVEvents,
    KVSnapshot,
    add_to_digest,
)


def block(number: int) -> BlockHash:
    return BlockHash(hashlib.blake2b(str(number).encode(), digest_size=16).digest())


class FakeWorker:
    """Holds block numbers, and says so as a worker does."""

    def __init__(self) -> None:
        self.held: dict[BlockHash, None] = {}
        self.sequence = 0

    @property
    def digest(self) -> int:
        return add_to_digest(0, self.held)

    def does(self, *events: KVEvent) -> KVEvents:
        for event in events:
            if isinstance(event, BlocksStored):
                self.held.update(dict.fromkeys(map(BlockHash, event.hashes)))
            elif isinstance(event, BlocksRemoved):
                for one in event.hashes:
                    del self.held[BlockHash(one)]
            else:
                self.held.clear()
        self.sequence += 1
        return KVEvents(self.sequence, self.digest, list(events))

    def stores(self, *numbers: int) -> KVEvents:
        return self.does(BlocksStored(b"", [block(one) for one in numbers]))

    def status(self) -> KVEvents:
        return KVEvents(self.sequence, self.digest)

    def snapshot(self, part_size: int = 2) -> list[KVSnapshot]:
        held = list[bytes](self.held)
        parts = [held[start : start + part_size] for start in range(0, len(held), part_size)] or [[]]
        return [
            KVSnapshot(self.sequence, self.digest, part, number == len(parts))
            for number, part in enumerate(parts, 1)
        ]


class Gateway:
    def __init__(self) -> None:
        self.index = KVIndex()
        self.index.join("w")
        self.asked = 0
        self.now = 0.0
        self.feed = EventFeed(self.index, "w", self._ask)
        self.feed.begin(self.now)

    def _ask(self) -> None:
        self.asked += 1

    def hears(self, *messages: KVEvents | KVSnapshot) -> None:
        for message in messages:
            if isinstance(message, KVEvents):
                self.feed.hear(message, self.now)
            else:
                self.feed.hear_snapshot(message, self.now)

    def holds(self, *numbers: int) -> bool:
        return all(self.index.match([block(one)], 0.0) == {"w": MatchedBlocks(1)} for one in numbers)

    def is_right_about(self, worker: FakeWorker) -> bool:
        return self.feed.is_in_step and self.index.digest("w") == worker.digest


def started() -> tuple[FakeWorker, Gateway]:
    worker, gateway = FakeWorker(), Gateway()
    gateway.hears(*worker.snapshot())
    assert gateway.is_right_about(worker)
    return worker, gateway


def test_gateway_that_comes_later_takes_a_snapshot_in_parts_and_goes_on_from_there() -> None:
    worker, gateway = FakeWorker(), Gateway()
    worker.stores(1, 2, 3, 4, 5)
    assert gateway.asked == 1
    gateway.hears(*worker.snapshot())
    gateway.hears(worker.stores(6), worker.does(BlocksRemoved([block(1)])))

    assert gateway.is_right_about(worker)
    assert gateway.holds(2, 3, 4, 5, 6)
    assert not gateway.holds(1)
    assert gateway.asked == 1


def test_missing_batch_is_noticed_with_the_next_and_healed_by_a_snapshot() -> None:
    worker, gateway = started()
    worker.stores(1)
    gateway.hears(worker.stores(2))
    assert gateway.asked == 2
    gateway.hears(*worker.snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.holds(1, 2)


def test_missing_last_batch_is_noticed_with_a_status() -> None:
    worker, gateway = started()
    worker.stores(1)
    gateway.hears(worker.status())
    assert gateway.asked == 2
    gateway.hears(*worker.snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.holds(1)


def test_batches_in_the_wrong_order_end_in_the_right_state() -> None:
    worker, gateway = started()
    batches = [worker.stores(1), worker.does(BlocksRemoved([block(1)])), worker.stores(2)]
    gateway.hears(batches[2], batches[0], batches[1])
    gateway.hears(*worker.snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.holds(2)
    assert not gateway.holds(1)


def test_repeated_and_late_batches_change_nothing() -> None:
    worker, gateway = started()
    first, second = worker.stores(1), worker.does(CacheCleared(), BlocksStored(b"", [block(2)]))
    gateway.hears(first, first, second, first, second)

    assert gateway.is_right_about(worker)
    assert gateway.asked == 1
    assert not gateway.holds(1)


def test_batches_that_cross_an_older_snapshot_are_applied_to_it() -> None:
    worker, gateway = FakeWorker(), Gateway()
    worker.stores(1, 2)
    snapshot = worker.snapshot(part_size=1)
    later = [worker.does(BlocksRemoved([block(1)])), worker.stores(3)]
    gateway.hears(later[0], snapshot[0], later[1], snapshot[1])

    assert gateway.is_right_about(worker)
    assert gateway.holds(2, 3)
    assert gateway.asked == 1


def test_digest_that_differs_is_healed_by_a_snapshot_and_the_old_stays_in_use_until_then() -> None:
    worker, gateway = started()
    gateway.hears(worker.stores(1))
    worker.held[block(2)] = None
    gateway.hears(worker.status())

    assert gateway.asked == 2
    assert gateway.holds(1)
    gateway.hears(*worker.snapshot())
    assert gateway.holds(1, 2)


def test_lost_or_damaged_snapshot_is_asked_for_again_after_a_while_but_not_before() -> None:
    worker, gateway = FakeWorker(), Gateway()
    worker.stores(1, 2, 3)
    first, _ = worker.snapshot()
    gateway.hears(first, worker.status())
    gateway.now = PATIENCE_S / 2
    gateway.hears(worker.status())
    assert gateway.asked == 1
    gateway.now = PATIENCE_S
    gateway.hears(worker.status())
    assert gateway.asked == 2
    gateway.hears(*worker.snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.holds(1, 2, 3)


def test_snapshot_with_a_part_missing_is_not_believed() -> None:
    worker, gateway = FakeWorker(), Gateway()
    worker.stores(1, 2, 3)
    gateway.hears(worker.snapshot()[1])

    assert not gateway.feed.is_in_step
    assert not gateway.holds(3)


def test_snapshot_nobody_asked_for_is_ignored() -> None:
    worker, gateway = started()
    gateway.hears(*FakeWorker().snapshot(), worker.stores(1), *FakeWorker().snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.holds(1)


def test_sequence_that_skips_a_number_without_events_means_that_they_were_too_many_to_say() -> None:
    worker, gateway = started()
    worker.stores(*range(100))
    worker.sequence += 1
    gateway.hears(worker.status())
    gateway.hears(*worker.snapshot())

    assert gateway.is_right_about(worker)
    assert gateway.asked == 2


def test_any_loss_and_disorder_is_healed_in_the_end() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        worker, gateway = started()
        numbers, in_flight = iter(range(10_000)), list[KVEvents | KVSnapshot]()
        for _ in range(30):
            if worker.held and rng.random() < 0.4:
                in_flight.append(worker.does(BlocksRemoved([rng.choice(list(worker.held))])))
            else:
                in_flight.append(worker.stores(*(next(numbers) for _ in range(rng.randint(1, 3)))))
            asked = gateway.asked
            if rng.random() < 0.3:
                rng.shuffle(in_flight)
            arrived, in_flight = in_flight[:2], in_flight[2:]
            gateway.hears(*(message for message in arrived if rng.random() < 0.8))
            gateway.now += 0.1
            if gateway.asked > asked:
                in_flight += worker.snapshot()
        gateway.hears(*in_flight)
        for _ in range(3):
            asked, gateway.now = gateway.asked, gateway.now + PATIENCE_S
            gateway.hears(worker.status())
            if gateway.asked > asked:
                gateway.hears(*worker.snapshot())

        assert gateway.is_right_about(worker), seed
        gateway.index.check_invariants()
        assert all(gateway.index.match([one], 0.0) for one in worker.held), seed
