"""One bit for each worker, so that a set of workers is an int."""

from collections.abc import Iterator
from dataclasses import dataclass, field

AGE_BITS = 48  # left free below the slots' bits


@dataclass(slots=True, eq=False)
class Slot:
    """What is known of one worker.

    `blocks` are those whose mask has its bit, with the time at which a prediction ends, or None for what the
    worker has said. `num_evicted` counts what it has said and the index had no room for; `digest` counts
    that too, as the worker does.
    """

    bit: int
    incarnation: str
    blocks: dict[bytes, float | None] = field(default_factory=dict)
    digest: int = 0
    num_evicted: int = 0


class SlotTable:
    """Hands out bits. One may still be in masks when its slot is closed: it is used again after `recycle`."""

    def __init__(self, max_slots: int) -> None:
        self._max_slots = max_slots
        self._by_bit: dict[int, Slot] = {}
        self._spare: list[int] = []
        self._num_minted = 0

    def open(self, incarnation: str) -> Slot | None:
        """None when all are taken."""
        if self._spare:
            bit = self._spare.pop()
        elif self._num_minted < self._max_slots:
            bit = 1 << (AGE_BITS + self._num_minted)
            self._num_minted += 1
        else:
            return None
        slot = self._by_bit[bit] = Slot(bit, incarnation)
        return slot

    def recycle(self, slot: Slot) -> None:
        """No mask has its bit any more."""
        del self._by_bit[slot.bit]
        self._spare.append(slot.bit)

    def of(self, mask: int) -> Iterator[Slot]:
        """The slots whose bits are in `mask`."""
        while mask:
            bit = mask & -mask
            yield self._by_bit[bit]
            mask ^= bit

    def __iter__(self) -> Iterator[Slot]:
        """Those that are not recycled."""
        return iter(self._by_bit.values())
