"""Exact where workers say what they hold, approximate where they do not; one index to whoever asks."""

from collections.abc import Iterable, Sequence

from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.counts import IndexCounts
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import Matches
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksStored, KVEvent


class CombinedIndex:
    """Implements PrefixIndex, and ToldIndex. Each worker is in one of the two."""

    def __init__(self, exact: KVIndex, approximate: ApproximateIndex) -> None:
        self.exact = exact
        self.approximate = approximate

    @property
    def counts(self) -> IndexCounts:
        return self.exact.counts

    def apply(self, incarnation: str, events: Iterable[KVEvent]) -> None:
        """A worker that was known by what was sent to it is known by its own words from the first block on
        that it says it holds; not if there is no room for it."""
        told = list(events)
        if incarnation not in self.exact:
            if not any(isinstance(event, BlocksStored) for event in told):
                return
            if not self.exact.join(incarnation):
                return
            self.approximate.drop(incarnation)
        self.exact.apply(incarnation, told)

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        return {**self.approximate.match(hashes, now), **self.exact.match(hashes, now)}

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        self.exact.predict(incarnation, hashes, now)
        self.approximate.predict(incarnation, hashes, now)

    def drop(self, incarnation: str) -> None:
        self.exact.drop(incarnation)
        self.approximate.drop(incarnation)
