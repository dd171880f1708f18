"""Exact where workers say what they hold, approximate where they do not; one index to whoever asks."""

from collections.abc import Sequence

from atomesh.mesh.kv_index.approximate import ApproximateIndex
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import Matches
from atomesh.protocol.block_hash import BlockHash


class CombinedIndex:
    """Implements PrefixIndex. Each worker joins one of the two."""

    def __init__(self, exact: KVIndex, approximate: ApproximateIndex) -> None:
        self.exact = exact
        self.approximate = approximate

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        return {**self.approximate.match(hashes, now), **self.exact.match(hashes, now)}

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        self.exact.predict(incarnation, hashes, now)
        self.approximate.predict(incarnation, hashes, now)

    def drop(self, incarnation: str) -> None:
        self.exact.drop(incarnation)
        self.approximate.drop(incarnation)
