"""What has been promised for a while: entries that vanish again unless they come true."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nextafter

from atomesh.mesh.kv_index.block_map import BlockMap
from atomesh.mesh.kv_index.slots import Slot


@dataclass(frozen=True, slots=True)
class Prediction:
    """`until`, in seconds, `slot` may be expected to hold what it has not said of `blocks`."""

    until: float
    slot: Slot
    blocks: tuple[bytes, ...]


class Predictions:
    """Each lives `ttl_s`; when more than `max_blocks` are promised, the oldest end early.

    What is promised twice counts twice. `num_expired` are blocks that vanished when their time was over.
    """

    def __init__(self, blocks: BlockMap, ttl_s: float, max_blocks: int) -> None:
        self._map = blocks
        self._ttl_s = ttl_s
        self._max_blocks = max_blocks
        self.num_expired = 0
        self._num_blocks = 0
        self._last_until = 0.0  # no two end at once: an earlier one must not end what a later one promises
        self._queue: deque[Prediction] = deque()

    def add(self, slot: Slot, blocks: Sequence[bytes], now: float) -> None:
        """Promise what the slot's worker has not said that it holds; a second promise lasts longer."""
        self._last_until = max(now + self._ttl_s, nextafter(self._last_until, inf))
        self._promise(slot, blocks, self._last_until)

    def move(self, old: Slot, new: Slot) -> None:
        """What was promised for `old` is promised for `new`, unless that has it."""
        queue, self._queue, self._num_blocks = self._queue, deque(), 0
        for one in queue:
            if one.slot is old:
                still_open = [block for block in one.blocks if old.blocks.get(block) is not None]
                self._promise(new, still_open, one.until)
            else:
                self._enter(one)

    def forget(self, slot: Slot) -> None:
        """The slot is closed."""
        kept = [one for one in self._queue if one.slot is not slot]
        self._queue = deque(kept)
        self._num_blocks = sum(len(one.blocks) for one in kept)

    def shrink(self, slot: Slot, num_blocks: int) -> None:
        """End the oldest promises, tails first, until the slot, which has nothing else, has so many."""
        while self._queue and len(slot.blocks) > num_blocks:
            oldest = self._queue.popleft()
            kept = max(0, len(oldest.blocks) - (len(slot.blocks) - num_blocks))
            self._num_blocks -= len(oldest.blocks) - kept
            self._end(oldest, oldest.blocks[kept:])
            if kept:
                self._queue.appendleft(Prediction(oldest.until, slot, oldest.blocks[:kept]))

    def expire(self, now: float) -> None:
        while self._queue and self._queue[0].until <= now:
            self.num_expired += self._end_oldest()

    def _promise(self, slot: Slot, blocks: Sequence[bytes], until: float) -> None:
        unknown = tuple(block for block in blocks if slot.blocks.get(block, until) is not None)
        for block in reversed(unknown):
            self._map.put(slot, block, until)
        if unknown:
            self._enter(Prediction(until, slot, unknown))

    def _enter(self, one: Prediction) -> None:
        self._queue.append(one)
        self._num_blocks += len(one.blocks)
        while self._num_blocks > self._max_blocks:
            self._end_oldest()

    def _end_oldest(self) -> int:
        oldest = self._queue.popleft()
        self._num_blocks -= len(oldest.blocks)
        return self._end(oldest, oldest.blocks)

    def _end(self, ended: Prediction, blocks: Sequence[bytes]) -> int:
        """Unless it has been told, or is promised for longer. How many there were."""
        num_ended = 0
        for block in blocks:
            until = ended.slot.blocks.get(block)
            if until is not None and until <= ended.until:
                self._map.discard(ended.slot, block)
                num_ended += 1
        return num_ended
