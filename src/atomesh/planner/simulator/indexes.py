"""Where the simulated gateway learns what workers hold."""

from collections.abc import Sequence
from typing import Protocol

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks, Matches, PrefixIndex
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import KVEvents


class FedIndex(PrefixIndex, Protocol):
    """A prefix index that hears what workers say."""

    def join(self, incarnation: str) -> bool: ...

    def hear(self, incarnation: str, events: KVEvents | None) -> None: ...


class EventIndex(KVIndex):
    """The production index, fed from frames that nothing loses."""

    def hear(self, incarnation: str, events: KVEvents | None) -> None:
        if events is not None:
            self.apply(incarnation, events.events)


class SharedCacheIndex:
    """Every worker holds what the one cache holds that they share, and it is known at once."""

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._incarnations: list[str] = []

    def join(self, incarnation: str) -> bool:
        self._incarnations.append(incarnation)
        return True

    def match(self, hashes: Sequence[BlockHash], now: float) -> Matches:
        found = MatchedBlocks(len(self._kv.match_hashes(hashes)))
        return dict.fromkeys(self._incarnations, found)

    def predict(self, incarnation: str, hashes: Sequence[BlockHash], now: float) -> None:
        """What is promised is held as soon as it is."""

    def drop(self, incarnation: str) -> None:
        """The cache stays."""

    def hear(self, incarnation: str, events: KVEvents | None) -> None:
        """It says nothing new."""
