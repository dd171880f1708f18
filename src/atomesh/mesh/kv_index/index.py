"""Where every KV block of the cluster lies, as the workers' events say it."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from atomesh.mesh.kv_index.block_map import HOST, BlockMap
from atomesh.mesh.kv_index.counts import IndexCounts
from atomesh.mesh.kv_index.matches import MatchedBlocks, Matches
from atomesh.mesh.kv_index.predictions import Predictions
from atomesh.mesh.kv_index.slots import Slot
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import (
    BlocksRemoved,
    BlocksStored,
    KVEvent,
    Tier,
    add_to_digest,
    take_from_digest,
)

MAX_BLOCKS = 2**20
MAX_SLOTS = 1024
PREDICTION_S = 10.0


class KVIndex:
    """Implements PrefixIndex, exactly, for workers that report what they hold.

    Holds `max_blocks` blocks at most, whatever the workers hold; see BlockMap for which go first. A worker
    must `join` before anything is known of it.
    """

    def __init__(
        self, max_blocks: int = MAX_BLOCKS, prediction_s: float = PREDICTION_S, max_slots: int = MAX_SLOTS
    ) -> None:
        self.counts = IndexCounts()
        self._map = BlockMap(max_blocks, max_slots)
        self._predictions = Predictions(self._map, prediction_s, max_blocks)
        self._slots: dict[str, Slot] = {}

    def __len__(self) -> int:
        """Blocks in the index, each counted once, and those of workers just dropped."""
        return len(self._map)

    def __contains__(self, incarnation: str) -> bool:
        return incarnation in self._slots

    @property
    def num_expired(self) -> int:
        """Blocks that were predicted, and not told in time."""
        return self._predictions.num_expired

    @property
    def num_evicted(self) -> int:
        """Blocks that there was no room for any more."""
        return self._map.num_evicted

    def blocks_by_worker(self) -> dict[str, int]:
        """Of each incarnation, predicted ones among them."""
        return {incarnation: len(slot.blocks) for incarnation, slot in self._slots.items()}

    def digest(self, incarnation: str) -> int:
        """Of what the worker has said that it holds, as the worker itself computes it."""
        return self._slots[incarnation].digest

    def join(self, incarnation: str) -> bool:
        """A worker that holds nothing, as far as we know; False when there are too many to know it."""
        if incarnation in self._slots:
            return True
        slot = self._map.open(incarnation)
        if slot is not None:
            self._show(slot)
        return slot is not None

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        self._predictions.expire(now)
        device = self._map.device_runs(hashes)
        if not self._map.has_host:
            return {
                incarnation: MatchedBlocks(run, promised=self._promised(incarnation, hashes, run))
                for incarnation, run in device.items()
            }
        return _by_tier(device, self._map.runs(hashes))

    def _promised(self, incarnation: str, hashes: Sequence[BlockHash], run: int) -> int:
        """How many at the end of a worker's run it has not said that it holds, as it computes heads first."""
        blocks = self._slots[incarnation].blocks
        if run == 0 or blocks.get(hashes[run - 1], 0.0) is None:
            return 0
        return run - bisect_left(range(run), True, key=lambda n: blocks.get(hashes[n], 0.0) is not None)

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        self._predictions.expire(now)
        slot = self._slots.get(incarnation)
        if slot is not None:
            began = self._map.now
            self._predictions.add(slot, hashes, now)
            self._map.freshen(hashes, began)
            self._map.sweep()

    def drop(self, incarnation: str) -> None:
        slot = self._slots.pop(incarnation, None)
        if slot is not None:
            self._predictions.forget(slot)
            self._map.close(slot)

    def apply(self, incarnation: str, events: Iterable[KVEvent]) -> None:
        """What a worker that has joined says, in its order. A prediction that it contradicts is over."""
        for event in events:
            slot = self._slots[incarnation]
            if isinstance(event, BlocksStored):
                self.counts.events["stored"] += 1
                self._store(slot, event.hashes, event.tier)
            elif isinstance(event, BlocksRemoved):
                self.counts.events["removed"] += 1
                self._remove(slot, event.hashes, event.tier)
            else:
                self.counts.events["cleared"] += 1
                self.drop(incarnation)
                self.join(incarnation)
        self._map.sweep()

    def begin_snapshot(self, incarnation: str) -> Slot | None:
        """Where the parts of a worker's snapshot are gathered, unseen; None when there is no room for it."""
        return self._map.open(incarnation)

    def add_to_snapshot(self, snapshot: Slot, hashes: Sequence[bytes], tier: Tier) -> None:
        self._store(snapshot, hashes, tier)
        self._map.sweep()

    def end_snapshot(self, snapshot: Slot) -> None:
        """It takes the place of what was known of the worker; predictions stay."""
        old = self._slots.get(snapshot.incarnation)
        self._show(snapshot)
        if old is not None:
            self._predictions.move(old, snapshot)
            self._map.close(old)

    def give_up_snapshot(self, snapshot: Slot) -> None:
        self._map.close(snapshot)

    def check_invariants(self) -> None:
        """Raises AssertionError when the index contradicts itself; for tests."""
        self._map.check_invariants()

    def _show(self, slot: Slot) -> None:
        self._slots[slot.incarnation] = slot
        self._map.show(slot)

    def _store(self, slot: Slot, hashes: Sequence[bytes], tier: Tier) -> None:
        for block_hash in reversed(hashes):
            block = _block(block_hash, tier)
            if slot.blocks.get(block, 0.0) is not None:
                slot.digest = add_to_digest(slot.digest, (block_hash,), tier)
                self._map.put(slot, block)

    def _remove(self, slot: Slot, hashes: Sequence[bytes], tier: Tier) -> None:
        """A worker removes only what it holds: what is not known here had to be evicted, if anything was."""
        for block_hash in hashes:
            block = _block(block_hash, tier)
            is_known = slot.blocks.get(block, 0.0) is None
            if block in slot.blocks:
                self._map.discard(slot, block)
            if not is_known and slot.num_evicted:
                is_known = True
                slot.num_evicted -= 1
            if is_known:
                slot.digest = take_from_digest(slot.digest, (block_hash,), tier)


def _block(block_hash: bytes, tier: Tier) -> bytes:
    return block_hash if tier == "device" else block_hash + HOST


def _by_tier(device: Mapping[str, int], either: Mapping[str, int]) -> Matches:
    return {
        incarnation: MatchedBlocks(device.get(incarnation, 0), run - device.get(incarnation, 0))
        for incarnation, run in either.items()
    }
