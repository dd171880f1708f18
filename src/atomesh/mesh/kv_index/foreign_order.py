"""Keeps another engine's events in order: what is missing is got again, and what cannot be had, forgotten.

vLLM's publisher keeps its last batches for replay. Its sequence begins at 0 with each of its lives; a low
number with a later time gives another life away.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from atomesh.mesh.kv_index.counts import IndexCounts
from atomesh.mesh.kv_index.foreign import Translator
from atomesh.protocol.kv_events import KVEvent
from atomesh.protocol.vllm_kv_events import ForeignBatch


class ToldIndex(Protocol):
    """An index that believes what workers say."""

    @property
    def counts(self) -> IndexCounts: ...

    def apply(self, incarnation: str, events: Iterable[KVEvent]) -> None: ...


class ForeignFeed:
    """One worker's batches on their way into the index. `losses` counts how often all had to be forgotten.

    What is heard of a large batch is taken in piece by piece, with `work_on`, or else with the next batch.
    """

    def __init__(self, index: ToldIndex, incarnation: str, translator: Translator) -> None:
        """`incarnation` has joined the index."""
        self.losses = 0
        self._index = index
        self._incarnation = incarnation
        self._translator = translator
        self._next = 0
        self._timestamp = float("-inf")
        self._pieces: Iterator[list[KVEvent]] = iter(())

    @property
    def next_sequence(self) -> int:
        """Of the batch that is awaited."""
        return self._next

    @property
    def replay_from(self) -> int:
        """The last batch that was heard: its time tells whether the engine still lives the same life."""
        return max(self._next - 1, 0)

    def left_out(self, reason: str) -> int:
        """Blocks that were not indexed for this reason."""
        return self._translator.left_out[reason]

    def hear(self, sequence: int, batch: ForeignBatch) -> int | None:
        """None when it has been taken in, or was known.

        Otherwise the number of the first batch that is missing: have all from `replay_from` on replayed,
        `resume` with each of them, and then with this one.
        """
        if sequence < self._next:
            if batch.timestamp <= self._timestamp:
                return None
            self._lose(0)
        if sequence > self._next:
            return self._next
        self._take_in(batch)
        self._next, self._timestamp = sequence + 1, batch.timestamp
        return None

    def work_on(self) -> bool:
        """Take in another piece of what was heard; False when that was all."""
        before = self._translator.left_out.copy()
        told = next(self._pieces, None)
        if told:
            self._index.apply(self._incarnation, told)
        self._index.counts.left_out += self._translator.left_out - before
        return told is not None

    def resume(self, sequence: int, batch: ForeignBatch) -> int | None:
        """What could be replayed has been heard; what is missing before this batch is lost.

        Not None when it is of another life: ask for a replay again, now from that one's beginning.
        """
        if sequence > self._next:
            self._lose(sequence)
        return self.hear(sequence, batch)

    def _take_in(self, batch: ForeignBatch) -> None:
        self._finish()
        self._pieces = self._translator.pieces(batch.events)
        self.work_on()

    def _finish(self) -> None:
        while self.work_on():
            pass

    def _lose(self, following: int) -> None:
        """Before anything was heard there is nothing to forget."""
        is_first = self._next == 0 and following > 0
        self._next = following
        self._finish()
        if is_first:
            return
        self.losses += 1
        self._index.counts.losses += 1
        self._index.apply(self._incarnation, self._translator.forget())
