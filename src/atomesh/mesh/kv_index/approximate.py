"""Where prefixes probably lie, for engines that do not say: what was sent to a worker stays for a while."""

from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.mesh.kv_index.block_map import BlockMap
from atomesh.mesh.kv_index.matches import MatchedBlocks, Matches
from atomesh.mesh.kv_index.predictions import Predictions
from atomesh.mesh.kv_index.slots import Slot
from atomesh.protocol.block_hash import BlockHash

MAX_BLOCKS = 2**20
MAX_SLOTS = 1024
LIFETIME_S = 120.0


REPEATS = 8  # as often, on average, a block may have been sent again and be remembered for it


@dataclass(frozen=True, slots=True)
class _Cache:
    """What a worker is believed to hold."""

    slot: Slot
    capacity: int
    sent: Predictions


class ApproximateIndex:
    """Implements PrefixIndex from dispatched prompts alone.

    A block is believed to lie at a worker for `lifetime_s` after the last prompt with it that was sent there,
    but of each worker's blocks no more than its cache can hold, the last ones, heads rather than tails.
    """

    def __init__(
        self, lifetime_s: float = LIFETIME_S, max_blocks: int = MAX_BLOCKS, max_slots: int = MAX_SLOTS
    ) -> None:
        self._lifetime_s = lifetime_s
        self._map = BlockMap(max_blocks, max_slots)
        self._caches: dict[str, _Cache] = {}
        self._num_expired = 0  # of workers that are gone

    def __len__(self) -> int:
        """Blocks in the index, each counted once, and those of workers just dropped."""
        return len(self._map)

    def __contains__(self, incarnation: str) -> bool:
        return incarnation in self._caches

    @property
    def num_expired(self) -> int:
        """Blocks that were not sent again in time."""
        return self._num_expired + sum(cache.sent.num_expired for cache in self._caches.values())

    @property
    def num_evicted(self) -> int:
        """Blocks that there was no room for any more."""
        return self._map.num_evicted

    def blocks_by_worker(self) -> dict[str, int]:
        """Of each incarnation."""
        return {incarnation: len(cache.slot.blocks) for incarnation, cache in self._caches.items()}

    def join(self, incarnation: str, capacity: int) -> bool:
        """A worker whose cache holds `capacity` blocks; False when there are too many to know it."""
        if incarnation in self._caches:
            return True
        slot = self._map.open(incarnation)
        if slot is None:
            return False
        sent = Predictions(self._map, self._lifetime_s, REPEATS * capacity)
        self._caches[incarnation] = _Cache(slot, capacity, sent)
        self._map.show(slot)
        return True

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        for cache in self._caches.values():
            cache.sent.expire(now)
        return {incarnation: MatchedBlocks(run) for incarnation, run in self._map.device_runs(hashes).items()}

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        cache = self._caches.get(incarnation)
        if cache is None:
            return
        began = self._map.now
        cache.sent.add(cache.slot, hashes, now)
        cache.sent.shrink(cache.slot, cache.capacity)
        self._map.freshen(hashes, began)
        self._map.sweep()

    def drop(self, incarnation: str) -> None:
        cache = self._caches.pop(incarnation, None)
        if cache is not None:
            self._num_expired += cache.sent.num_expired
            self._map.close(cache.slot)

    def check_invariants(self) -> None:
        """Raises AssertionError when the index contradicts itself; for tests."""
        self._map.check_invariants()
