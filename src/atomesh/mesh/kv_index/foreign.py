"""Another engine's KV events in our words: its blocks under the hashes that we give to their tokens.

A block is indexed under our hash of its tokens and of all before them, which is known when its parent's is.
What cannot be known is left out, which costs a hit and never brings a wrong one: a block behind an unknown
parent, one of another block size, one with images or embeddings before it, and one that does not say under
which salt it lies.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, Tier
from atomesh.protocol.vllm_kv_events import (
    DEVICE_MEDIUM,
    ForeignEvent,
    ForeignHash,
    ForeignRemoved,
    ForeignStored,
)

MAX_HASHES = 2**20


class Translator:
    """Of one worker's events. `left_out` counts the blocks that were not indexed, by reason.

    A worker may hold a block several times over, and removes each copy. When it comes to hold more than
    `max_hashes` different ones, all is forgotten and counting begins anew.
    """

    def __init__(
        self, hasher: BlockHasher, *, is_unsalted: bool = False, max_hashes: int = MAX_HASHES
    ) -> None:
        """`hasher` as for our own workers of this model and block size. With `is_unsalted` nothing that the
        worker serves has a salt, so that events which do not say may be believed."""
        self.left_out: Counter[str] = Counter()
        self._hasher = hasher
        self._is_unsalted = is_unsalted
        self._max_hashes = max_hashes
        self._ours: dict[tuple[ForeignHash, Tier], BlockHash] = {}
        self._copies: Counter[tuple[ForeignHash, Tier]] = Counter()

    def translate(self, events: Iterable[ForeignEvent]) -> list[KVEvent]:
        """What the index is to be told of it."""
        told: list[KVEvent] = []
        for event in events:
            if isinstance(event, ForeignStored):
                told += self._stored(event)
            elif isinstance(event, ForeignRemoved):
                told += self._removed(event)
            else:
                told += self.forget()
        return told

    def forget(self) -> list[KVEvent]:
        """The worker holds nothing, or has not been heard for a while."""
        self._ours.clear()
        self._copies.clear()
        return [CacheCleared()]

    def _stored(self, event: ForeignStored) -> list[KVEvent]:
        reason = self._objection(event)
        parent = self._parent(event) if reason is None else None
        if parent is None:
            self.left_out[reason or "parent"] += len(event.block_hashes)
            return []
        told: list[KVEvent] = []
        if len(self._ours) + len(event.block_hashes) > self._max_hashes:
            told = self.forget()
        return [*told, *self._index(event, parent)]

    def _index(self, event: ForeignStored, parent: BlockHash) -> list[KVEvent]:
        tier, size = _tier(event.medium), event.block_size
        new: list[bytes] = []
        for number, theirs in enumerate(event.block_hashes):
            if number and _has_keys(event, number):
                self.left_out["keys"] += len(event.block_hashes) - number
                break
            parent = self._hasher.extend(parent, event.token_ids[number * size : (number + 1) * size])
            if (theirs, tier) not in self._ours:
                new.append(parent)
            self._ours[theirs, tier] = parent
            self._copies[theirs, tier] += 1
        return [BlocksStored(b"", new, tier)] if new else []

    def _removed(self, event: ForeignRemoved) -> list[KVEvent]:
        tier = _tier(event.medium)
        gone: list[bytes] = []
        for theirs in event.block_hashes:
            key = (theirs, tier)
            if key not in self._ours:
                continue
            self._copies[key] -= 1
            if self._copies[key] == 0:
                del self._copies[key]
                gone.append(self._ours.pop(key))
        return [BlocksRemoved(gone, tier)] if gone else []

    def _objection(self, event: ForeignStored) -> str | None:
        if event.group_idx:
            return "group"
        if event.block_size != self._hasher.block_size:
            return "block_size"
        if len(event.token_ids) != len(event.block_hashes) * event.block_size:
            return "tokens"
        keys = event.extra_keys
        if keys is not None and len(keys) != len(event.block_hashes):
            return "keys"
        return "unsaid" if keys is None and not self._is_unsalted else None

    def _parent(self, event: ForeignStored) -> BlockHash | None:
        adapter = event.lora_name or ""
        if event.lora_id is not None and not adapter:
            return None
        if event.parent_block_hash is not None:
            if _has_keys(event, 0):
                return None
            return self._known(event.parent_block_hash)
        salt = _salt(event.extra_keys[0] if event.extra_keys else None, adapter)
        return None if salt is None else self._hasher.root(salt, adapter)

    def _known(self, theirs: ForeignHash) -> BlockHash | None:
        return self._ours.get((theirs, "device")) or self._ours.get((theirs, "host"))


def _tier(medium: str | None) -> Tier:
    return "device" if medium is None or medium == DEVICE_MEDIUM else "host"


def _has_keys(event: ForeignStored, number: int) -> bool:
    """The block's identity depends on more than its tokens, its adapter, and what went before."""
    return bool(event.extra_keys and _keys_beside_adapter(event.extra_keys[number], event.lora_name or ""))


def _salt(keys: Any, adapter: str) -> str | None:
    """Of a prompt's first block; empty when it has none, None when its identity depends on something else."""
    match _keys_beside_adapter(keys, adapter):
        case []:
            return ""
        case [str(salt)] | [{"type": "cache_salt", "salt": str(salt)}]:
            return salt
        case _:
            return None


def _keys_beside_adapter(keys: Any, adapter: str) -> list[Any]:
    if keys is None:
        return []
    rest = list(keys) if isinstance(keys, list | tuple) else [keys]
    for name in (adapter, {"type": "lora", "name": adapter}):
        if adapter and name in rest:
            rest.remove(name)
            break
    return rest
