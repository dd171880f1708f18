"""Keeps what the index knows of one worker in step with the worker's events.

    joined ──▶ waiting for a snapshot ──last part──▶ following ──next batch──▶ following
                     ▲                                  │
                     └── a batch is missing, or the ────┘
                         digests differ

While a snapshot is awaited, what is known stays in use, batches that follow on it are applied to it, and all
batches are kept to be applied to the snapshot too. What comes late or twice changes nothing.
"""

from collections import deque
from collections.abc import Callable

from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.slots import Slot
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, KVEvents, KVSnapshot

PATIENCE_S = 1.0  # a snapshot that has not come by then is asked for again
MAX_KEPT_HASHES = 2**18


class EventFeed:
    """One worker's events on their way into the index. `resyncs` counts the snapshots asked for."""

    def __init__(self, index: KVIndex, incarnation: str, request_snapshot: Callable[[], None]) -> None:
        """`incarnation` has joined the index. `request_snapshot` asks the worker for one; do not wait."""
        self.resyncs = 0
        self._index = index
        self._incarnation = incarnation
        self._request_snapshot = request_snapshot
        self._sequence = 0
        self._asked_at: float | None = None
        self._kept: deque[KVEvents] = deque()
        self._num_kept_hashes = 0
        self._gathering: Slot | None = None
        self._gathered_sequence = 0

    @property
    def is_in_step(self) -> bool:
        """No snapshot is awaited."""
        return self._asked_at is None

    def begin(self, now: float) -> None:
        """The connection stands: find out what the worker holds."""
        self._ask(now)

    def hear(self, batch: KVEvents, now: float) -> None:
        if not self.is_in_step:
            self._keep(batch)
        elif batch.sequence > self._sequence + bool(batch.events):
            self._index.counts.gaps += 1
            self._ask(now)
            self._keep(batch)
        self._follow(batch)
        if self._asked_at is None:
            if self._is_off(batch):
                self._index.counts.mismatches += 1
                self._ask(now)
        elif now - self._asked_at >= PATIENCE_S:
            self._ask(now)

    def hear_snapshot(self, part: KVSnapshot, now: float) -> None:
        if self.is_in_step:
            return
        if self._gathering is not None and part.sequence != self._gathered_sequence:
            self._give_up()
        if self._gathering is None:
            self._gathering = self._index.begin_snapshot(self._incarnation)
            self._gathered_sequence = part.sequence
        if self._gathering is None:
            return
        self._asked_at = now
        self._index.add_to_snapshot(self._gathering, part.hashes, part.tier)
        if part.is_last:
            self._take_over(self._gathering, part, now)

    def close(self) -> None:
        """The connection is gone; whoever knows whether the worker is too drops it from the index."""
        self._give_up()

    def _follow(self, batch: KVEvents) -> None:
        if batch.events and batch.sequence == self._sequence + 1:
            self._index.apply(self._incarnation, batch.events)
            self._sequence = batch.sequence

    def _is_off(self, batch: KVEvents) -> bool:
        return batch.sequence == self._sequence and batch.digest != self._index.digest(self._incarnation)

    def _take_over(self, snapshot: Slot, part: KVSnapshot, now: float) -> None:
        """The snapshot is complete. If it is not what the worker meant, another is asked for in a while."""
        self._gathering = None
        if snapshot.digest != part.digest:
            self._index.counts.snapshots["refused"] += 1
            self._index.give_up_snapshot(snapshot)
            return
        self._index.counts.snapshots["taken"] += 1
        self._index.end_snapshot(snapshot)
        self._sequence = part.sequence
        self._asked_at = None
        kept, self._kept, self._num_kept_hashes = sorted(self._kept, key=_by_sequence), deque(), 0
        for batch in kept:
            self.hear(batch, now)

    def _ask(self, now: float) -> None:
        self._asked_at = now
        self.resyncs += 1
        self._index.counts.snapshots["requested"] += 1
        self._give_up()
        self._request_snapshot()

    def _keep(self, batch: KVEvents) -> None:
        self._kept.append(batch)
        self._num_kept_hashes += _num_hashes(batch)
        while self._num_kept_hashes > MAX_KEPT_HASHES:
            self._num_kept_hashes -= _num_hashes(self._kept.popleft())

    def _give_up(self) -> None:
        if self._gathering is not None:
            self._index.give_up_snapshot(self._gathering)
            self._gathering = None


def _by_sequence(batch: KVEvents) -> int:
    return batch.sequence


def _num_hashes(batch: KVEvents) -> int:
    """And one for the batch itself."""
    return 1 + sum(len(one.hashes) for one in batch.events if isinstance(one, BlocksStored | BlocksRemoved))
