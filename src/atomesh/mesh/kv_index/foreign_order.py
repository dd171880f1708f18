"""Keeps another engine's events in order: what is missing is got again, and what cannot be had, forgotten.

vLLM's publisher keeps its last batches for replay. Its sequence begins at 0 with each of its lives; a low
number with a later time gives another life away.
"""

from atomesh.mesh.kv_index.foreign import Translator
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.protocol.vllm_kv_events import ForeignBatch


class ForeignFeed:
    """One worker's batches on their way into the index. `losses` counts how often all had to be forgotten."""

    def __init__(self, index: KVIndex, incarnation: str, translator: Translator) -> None:
        """`incarnation` has joined the index."""
        self.losses = 0
        self._index = index
        self._incarnation = incarnation
        self._translator = translator
        self._next = 0
        self._timestamp = float("-inf")

    def hear(self, sequence: int, batch: ForeignBatch) -> int | None:
        """None when it has been taken in, or was known.

        Otherwise the number of the first batch that is missing: have it and those after it replayed, hear
        them, and then `resume` with this one.
        """
        if sequence < self._next:
            if batch.timestamp <= self._timestamp:
                return None
            self._lose(0)
        if sequence > self._next:
            return self._next
        self._index.apply(self._incarnation, self._translator.translate(batch.events))
        self._next, self._timestamp = sequence + 1, batch.timestamp
        return None

    def resume(self, sequence: int, batch: ForeignBatch) -> None:
        """What could be replayed has been heard; what is missing before this batch is lost."""
        if sequence > self._next:
            self._lose(sequence)
        self.hear(sequence, batch)

    def _lose(self, following: int) -> None:
        self.losses += 1
        self._next = following
        self._index.apply(self._incarnation, self._translator.forget())
