"""Which workers hold which blocks, in bounded memory.

All of it is in plain dicts of bytes, ints and floats, which the garbage collector does not walk through: it
would take tens of milliseconds each time for a million blocks.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from atomesh.mesh.kv_index.slots import AGE_BITS, Slot, SlotTable

HOST = b"\x01"  # after a hash: the block's copy in the host tier
SWEEP_BLOCKS = 512
CALM_SHARE = 0.75  # of the limit; below it nobody asks who is stale
_AGE = (1 << AGE_BITS) - 1


class BlockMap:
    """Block → set of workers, as a mask of slot bits. Beyond `max_blocks` the stalest block is evicted.

    Blocks grow stale in the order in which they were first stored or last dispatched, a prompt's tail before
    its head: the bits below the slots' are the block's number in that order. A block is named by its hash, in
    the host tier with HOST behind it.
    """

    def __init__(self, max_blocks: int, max_slots: int) -> None:
        self.num_evicted = 0
        self._max_blocks = max_blocks
        self._slots = SlotTable(max_slots)
        self._holders: dict[bytes, int] = {}
        self._by_age: dict[int, bytes] = {}
        self._oldest = 0
        self._next_age = 0
        self._shown = 0
        self._closed: deque[Slot] = deque()
        self._has_host = False

    def __len__(self) -> int:
        return len(self._holders)

    def open(self, incarnation: str) -> Slot | None:
        """A worker without blocks, not to be found before `show`; None when there are too many."""
        while (slot := self._slots.open(incarnation)) is None and self._closed:
            self.sweep()
        return slot

    def show(self, slot: Slot) -> None:
        self._shown |= slot.bit

    def close(self, slot: Slot) -> None:
        """The worker is not found any more; its blocks are cleared away little by little, by `sweep`."""
        self._shown &= ~slot.bit
        self._closed.append(slot)

    def put(self, slot: Slot, block: bytes, until: float | None = None) -> None:
        """The slot's worker holds the block, for all we know or `until` then."""
        if block not in slot.blocks:
            mask = self._holders.get(block)
            self._holders[block] = slot.bit | (self._date(block) if mask is None else mask)
        slot.blocks[block] = until
        if len(block) > 16:
            self._has_host = True
        while len(self._holders) > self._max_blocks:
            self._make_room()

    def discard(self, slot: Slot, block: bytes) -> None:
        """The slot's worker, which has it, holds the block no more."""
        del slot.blocks[block]
        self._clear_bit(slot, block)

    @property
    def now(self) -> int:
        """Grows with each block that is put or freshened."""
        return self._next_age

    def freshen(self, blocks: Sequence[bytes], since: int) -> None:
        """A prompt of these blocks is under way: of all in the map they are the last to be evicted.

        Those of them that were put after `since` are young already. While the map has plenty of room, nothing
        is done: what it will evict, if ever, is then older than all that follows.
        """
        if len(self._holders) < self._max_blocks * CALM_SHARE:
            return
        for block in reversed(blocks):
            mask = self._holders.get(block)
            if mask is not None and (age := mask & _AGE) < since:
                del self._by_age[age]
                self._holders[block] = (mask ^ age) | self._date(block)

    def sweep(self) -> None:
        """Clear away some of what closed slots have left."""
        if not self._closed:
            return
        slot = self._closed[0]
        for _ in range(min(SWEEP_BLOCKS, len(slot.blocks))):
            block, _ = slot.blocks.popitem()
            self._clear_bit(slot, block)
        if not slot.blocks:
            self._closed.popleft()
            self._slots.recycle(slot)

    def device_runs(self, hashes: Iterable[bytes]) -> dict[str, int]:
        """By incarnation: how many blocks of a prompt, from the first on, lie in the device tier.

        Every block up to the end of the longest run is looked at, so that a hole in a worker's chain is
        seen.
        """
        return self._runs(map(self._holders.get, hashes))

    def runs(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """As `device_runs`, but a block may lie in either tier."""
        get = self._holders.get
        return self._runs(get(one, 0) | get(one + HOST, 0) for one in hashes)

    @property
    def has_host(self) -> bool:
        """Something was once held in the host tier."""
        return self._has_host

    def _runs(self, masks: Iterable[int | None]) -> dict[str, int]:
        remaining, length = self._shown, 0
        lengths: dict[str, int] = {}
        for mask in masks:
            held = remaining & mask if mask else 0
            if held != remaining:
                self._end_runs(remaining ^ held, length, lengths)
                remaining = held
                if not held:
                    return lengths
            length += 1
        self._end_runs(remaining, length, lengths)
        return lengths

    def _end_runs(self, mask: int, length: int, lengths: dict[str, int]) -> None:
        if length:
            for slot in self._slots.of(mask):
                lengths[slot.incarnation] = length

    def _date(self, block: bytes) -> int:
        """The block is the youngest; its number."""
        age, self._next_age = self._next_age, self._next_age + 1
        self._by_age[age] = block
        return age

    def _clear_bit(self, slot: Slot, block: bytes) -> None:
        mask = self._holders[block] & ~slot.bit
        if mask > _AGE:
            self._holders[block] = mask
        else:
            del self._holders[block]
            del self._by_age[mask]

    def _make_room(self) -> None:
        if self._closed:
            self.sweep()
            return
        while self._oldest not in self._by_age:
            self._oldest += 1
        block = self._by_age.pop(self._oldest)
        self.num_evicted += 1
        for slot in self._slots.of(self._holders.pop(block) & ~_AGE):
            slot.num_evicted += slot.blocks.pop(block) is None

    def check_invariants(self) -> None:
        """Raises AssertionError if a mask and a slot's blocks disagree, or the map has outgrown its limit."""
        if len(self._holders) > self._max_blocks:
            raise AssertionError(f"{len(self._holders)} blocks are in the map; {self._max_blocks} may be")
        counted = 0
        for block, mask in self._holders.items():
            if self._by_age.get(mask & _AGE) != block:
                raise AssertionError(f"{block.hex()} has lost its place in the order of age")
            for slot in self._slots.of(mask & ~_AGE):
                counted += 1
                if block not in slot.blocks:
                    raise AssertionError(f"{block.hex()} is not among the blocks of {slot.incarnation}")
        if len(self._by_age) != len(self._holders):
            raise AssertionError("the order of age has blocks that are gone")
        if counted != sum(len(slot.blocks) for slot in self._slots):
            raise AssertionError("a slot has blocks that no mask knows of")
