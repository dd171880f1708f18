"""Another engine's KV events in our words: its blocks under the hashes that we give to their tokens.

A block is indexed under our hash of its tokens and of all before them, which is known when its parent's is.
Their blocks may be of another size than ours: what a block brings is those of ours that end in it. What
cannot be known is left out, which costs a hit and never brings a wrong one: a block behind an unknown parent,
one with images or embeddings before it, one of other layers than those that see a whole prefix, one that lies
elsewhere, and one that does not say under which salt it lies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, Tier
from atomesh.protocol.vllm_kv_events import (
    DEVICE_MEDIUM,
    ELSEWHERE,
    HOST_MEDIA,
    ForeignEvent,
    ForeignHash,
    ForeignRemoved,
    ForeignStored,
)

MAX_HASHES = 2**20
PIECE = 2**12  # tokens and hashes that are taken in without letting others in
WHOLE_PREFIX = frozenset({"full_attention", "mla_attention", "sink_full_attention"})


class _Place(NamedTuple):
    """Where a chain has come to: our hash of its full blocks, and the tokens since."""

    parent: BlockHash
    tail: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Held:
    """What one of their blocks has brought; `completed` are ours, mostly one."""

    place: _Place
    completed: tuple[BlockHash, ...]
    copies: int = 1


class Translator:
    """Of one worker's events. `left_out` counts the blocks that were not indexed, by reason.

    A worker may hold a block several times over, and removes each copy. When what it holds comes to more than
    `max_hashes` different blocks, counted in ours where theirs are larger, all is forgotten and counting
    begins anew.
    """

    def __init__(
        self, hasher: BlockHasher, *, is_unsalted: bool = False, max_hashes: int = MAX_HASHES
    ) -> None:
        """`hasher` as for prompts that are to be found there. With `is_unsalted` nothing that the worker
        serves has a salt, so that events which do not say may be believed."""
        self.left_out: Counter[str] = Counter()
        self._hasher = hasher
        self._is_unsalted = is_unsalted
        self._max_hashes = max_hashes
        self._group: int | None = None
        self._held: dict[Tier, dict[ForeignHash, _Held]] = {"device": {}, "host": {}}
        self._num_held = 0

    def translate(self, events: Iterable[ForeignEvent]) -> list[KVEvent]:
        """What the index is to be told of it."""
        return list(chain.from_iterable(self.pieces(events)))

    def pieces(self, events: Iterable[ForeignEvent]) -> Iterator[list[KVEvent]]:
        """As `translate`, with about PIECE of work for each."""
        told: list[KVEvent] = []
        work = 0
        for event in events:
            for part, size in self._parts(event):
                told += part
                work += size
                if work >= PIECE:
                    yield told
                    told, work = [], 0
        yield told

    def _parts(self, event: ForeignEvent) -> Iterator[tuple[list[KVEvent], int]]:
        """Each with how many tokens or hashes it took."""
        if isinstance(event, ForeignStored):
            yield from self._stored(event)
        elif isinstance(event, ForeignRemoved):
            yield from self._removed(event)
        else:
            yield self.forget(), 1

    def forget(self) -> list[KVEvent]:
        """The worker holds nothing, or has not been heard for a while."""
        for held in self._held.values():
            held.clear()
        self._num_held = 0
        return [CacheCleared()]

    def _stored(self, event: ForeignStored) -> Iterator[tuple[list[KVEvent], int]]:
        tier = _tier(event.medium, event.locality)
        reason = self._objection(event) if tier is not None else "elsewhere"
        place = self._parent(event) if reason is None else None
        if place is None or tier is None:
            self.left_out[reason or "parent"] += len(event.block_hashes)
            yield [], 1
            return
        num_ours = len(event.token_ids) // self._hasher.block_size
        if self._num_held + max(len(event.block_hashes), num_ours) > self._max_hashes:
            yield self.forget(), 1
        for new, size in self._index(event, place, tier):
            yield [BlocksStored(b"", new, tier)] if new else [], size

    def _index(self, event: ForeignStored, place: _Place, tier: Tier) -> Iterator[tuple[list[bytes], int]]:
        """Our blocks that the worker has not held yet, as far as the run can be followed, and the tokens of
        theirs."""
        held, size = self._held[tier], event.block_size
        new: list[bytes] = []
        work = 1
        for number, theirs in enumerate(event.block_hashes):
            if work >= PIECE:
                yield new, work
                new, work = [], 0
            work += size
            tokens = event.token_ids[number * size : (number + 1) * size]
            place, completed = self._advance(place, tokens)
            known = held.get(theirs)
            reason = _doubt(event, number, None if known is None else known.place, place)
            if reason is not None:
                self.left_out[reason] += len(event.block_hashes) - number
                break
            if known is None:
                held[theirs] = _Held(place, completed)
                self._num_held += _weight(completed)
                new += completed
            else:
                known.copies += 1
        yield new, work

    def _advance(self, place: _Place, tokens: list[int]) -> tuple[_Place, tuple[BlockHash, ...]]:
        """Where these tokens lead, and the blocks of ours that they complete."""
        size, parent, rest = self._hasher.block_size, place.parent, (*place.tail, *tokens)
        completed: list[BlockHash] = []
        for start in range(0, len(rest) - size + 1, size):
            parent = self._hasher.extend(parent, rest[start : start + size])
            completed.append(parent)
        return _Place(parent, rest[len(completed) * size :]), tuple(completed)

    def _removed(self, event: ForeignRemoved) -> Iterator[tuple[list[KVEvent], int]]:
        tier = _tier(event.medium, event.locality)
        if tier is None or event.group_idx not in (None, self._group):
            yield [], 1
            return
        for start in range(0, len(event.block_hashes), PIECE):
            theirs = event.block_hashes[start : start + PIECE]
            gone = self._drop(theirs, tier)
            yield [BlocksRemoved(gone, tier)] if gone else [], len(theirs)

    def _drop(self, hashes: Iterable[ForeignHash], tier: Tier) -> list[bytes]:
        """Our blocks of which the worker holds no copy any more."""
        held = self._held[tier]
        gone: list[bytes] = []
        for theirs in hashes:
            known = held.get(theirs)
            if known is None:
                continue
            known.copies -= 1
            if known.copies == 0:
                del held[theirs]
                self._num_held -= _weight(known.completed)
                gone += known.completed
        return gone

    def _objection(self, event: ForeignStored) -> str | None:
        if event.block_size == 0 or len(event.token_ids) != len(event.block_hashes) * event.block_size:
            return "tokens"
        if not self._is_followed(event):
            return "group"
        keys = event.extra_keys
        if keys is not None and len(keys) != len(event.block_hashes):
            return "keys"
        is_unsaid = keys is None and event.cache_salt is None
        return "unsaid" if is_unsaid and not self._is_unsalted else None

    def _is_followed(self, event: ForeignStored) -> bool:
        """Of several groups of layers the first whose blocks are there for a whole prefix or not at all."""
        if event.group_idx is None:
            return True
        kind = event.kv_cache_spec_kind
        if self._group is None and (event.group_idx == 0 if kind is None else kind in WHOLE_PREFIX):
            self._group = event.group_idx
        return event.group_idx == self._group

    def _parent(self, event: ForeignStored) -> _Place | None:
        adapter = event.lora_name or ""
        if event.lora_id is not None and not adapter:
            return None
        if event.parent_block_hash is not None:
            return None if _has_keys(event, 0) else self._known(event.parent_block_hash)
        salt = event.cache_salt
        if salt is None:
            salt = _salt(event.extra_keys[0] if event.extra_keys else None, adapter)
        return None if salt is None else _Place(self._hasher.root(salt, adapter))

    def _known(self, theirs: ForeignHash) -> _Place | None:
        known = self._held["device"].get(theirs) or self._held["host"].get(theirs)
        return None if known is None else known.place


def _weight(completed: tuple[BlockHash, ...]) -> int:
    return max(1, len(completed))


def _tier(medium: str | None, locality: str | None) -> Tier | None:
    """None for what the worker holds no more than others do."""
    if locality == ELSEWHERE:
        return None
    if medium is None or medium == DEVICE_MEDIUM:
        return "device"
    return "host" if medium in HOST_MEDIA else None


def _doubt(event: ForeignStored, number: int, known: _Place | None, place: _Place) -> str | None:
    """Why the run cannot be followed to this block: its identity, or that its name is another block's too."""
    if number and _has_keys(event, number):
        return "keys"
    return "ambiguous" if known is not None and known != place else None


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
