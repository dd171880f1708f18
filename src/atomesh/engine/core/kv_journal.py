"""What has come into the prefix cache and gone from it since somebody last asked."""

from collections.abc import Collection
from dataclasses import dataclass

from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import (
    MAX_SNAPSHOT_HASHES,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    KVEvent,
    KVEvents,
    KVSnapshot,
    add_to_digest,
    take_from_digest,
)

MAX_PENDING_HASHES = 2**15


@dataclass(slots=True)
class _Run:
    """Blocks stored one after the other behind `parent`; or removed, then without one."""

    parent: bytes | None
    hashes: list[bytes]


class KVJournal:
    """Holds MAX_PENDING_HASHES at most. When more happens before it is asked, it says nothing, but skips a
    sequence number: whoever follows it asks for a snapshot then."""

    def __init__(self, held: Collection[BlockHash]) -> None:
        """`held` shows what the cache holds, after each change that is told here."""
        self._held = held
        self._digest = 0
        self._sequence = 0
        self._pending: list[_Run] = []
        self._num_pending = 0
        self._is_cleared = False
        self._is_overflown = False

    def stored(self, block_hash: BlockHash, parent: bytes) -> None:
        """`parent` is the hash before it, empty for a prompt's first block."""
        self._digest = add_to_digest(self._digest, (block_hash,))
        last = self._pending[-1] if self._pending else None
        if last is not None and last.parent is not None and last.hashes[-1] == parent:
            self._note(last, block_hash)
        else:
            self._note(self._begin(_Run(parent, [])), block_hash)

    def removed(self, block_hash: BlockHash) -> None:
        self._digest = take_from_digest(self._digest, (block_hash,))
        if not self._held:
            self._forget(is_cleared=True)
            return
        last = self._pending[-1] if self._pending else None
        is_removal = last is not None and last.parent is None
        self._note(last if last is not None and is_removal else self._begin(_Run(None, [])), block_hash)

    def take(self) -> KVEvents:
        """What has happened since the last time; without events if nothing has."""
        events: list[KVEvent] = [CacheCleared()] if self._is_cleared else []
        events += map(_event, self._pending)
        if self._is_overflown:
            self._sequence += 2
        elif events:
            self._sequence += 1
        self._forget(is_cleared=False)
        return KVEvents(self._sequence, self._digest, events)

    def snapshot(self) -> list[KVSnapshot]:
        """All that is held, in parts. Only right after `take`: ValueError if something has happened since."""
        if self._pending or self._is_cleared or self._is_overflown:
            raise ValueError("a snapshot is of the state after the last events taken; take those first")
        held = list[bytes](self._held)
        starts = range(0, max(1, len(held)), MAX_SNAPSHOT_HASHES)
        parts = [held[start : start + MAX_SNAPSHOT_HASHES] for start in starts]
        return [
            KVSnapshot(self._sequence, self._digest, part, is_last=number == len(parts))
            for number, part in enumerate(parts, 1)
        ]

    def _begin(self, run: _Run) -> _Run:
        if not self._is_overflown:
            self._pending.append(run)
        return run

    def _note(self, run: _Run, block_hash: BlockHash) -> None:
        if self._is_overflown:
            return
        run.hashes.append(block_hash)
        self._num_pending += 1
        if self._num_pending > MAX_PENDING_HASHES:
            self._forget(is_cleared=False)
            self._is_overflown = True

    def _forget(self, *, is_cleared: bool) -> None:
        """Nothing is pending any more but, if so, that all is gone."""
        self._pending = []
        self._num_pending = 0
        self._is_cleared = is_cleared
        self._is_overflown = False


def _event(run: _Run) -> KVEvent:
    return BlocksRemoved(run.hashes) if run.parent is None else BlocksStored(run.parent, run.hashes)
