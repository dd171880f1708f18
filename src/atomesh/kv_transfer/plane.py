"""What all connections of one transport share."""

import logging
from collections import Counter, deque
from dataclasses import dataclass, field

from atomesh.clock import Clock, MonotonicClock
from atomesh.kv_transfer.grants import Grants
from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.timers import Timers
from atomesh.kv_transfer.transport import TransportEvent
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.kv_outcomes import PLANE_REFUSALS
from atomesh.sparse_log import SparseLog

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Plane:
    """Only the transport's thread touches it; `events` and `refusals` may be read by others."""

    pool: PoolMemory
    identity: KVIdentity
    faults: FaultPoints = field(default_factory=NoFaults)
    clock: Clock = field(default_factory=MonotonicClock)
    grants: Grants = field(default_factory=Grants)
    timers: Timers = field(default_factory=Timers)
    events: deque[TransportEvent] = field(default_factory=deque)
    refusals: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(PLANE_REFUSALS, 0)))
    has_news: bool = False
    sparse_log: SparseLog = field(init=False)

    def __post_init__(self) -> None:
        self.sparse_log = SparseLog(self.clock)

    def emit(self, event: TransportEvent) -> None:
        self.events.append(event)
        self.has_news = True

    def count_refusal(self, reason: str) -> None:
        """One of PLANE_REFUSALS; that is news too, though nothing is to be polled."""
        self.refusals[reason] += 1
        self.has_news = True
        left_out = self.sparse_log.admit()
        if left_out is not None:
            counts = (reason, self.refusals[reason], left_out)
            log.warning("refused on the KV plane (%s, %d so far; %d lines left out)", *counts)

    def take_news(self) -> bool:
        """Whether something was emitted or refused since the last time."""
        had_news, self.has_news = self.has_news, False
        return had_news

    def after(self, seconds: float) -> float:
        return self.clock.now() + seconds
