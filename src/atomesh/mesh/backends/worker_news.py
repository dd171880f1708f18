"""One connection's share of what is known: a worker's KV events and measurements, until it is gone."""

import logging
from collections.abc import Callable

from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.kv_index.ordering import EventFeed
from atomesh.protocol.frames import Heartbeat, StepFrame
from atomesh.protocol.kv_events import KVSnapshot
from atomesh.protocol.worker import WorkerDescription

_log = logging.getLogger(__name__)


class WorkerNews:
    def __init__(
        self,
        worker: WorkerDescription,
        knowledge: Knowledge,
        request_snapshot: Callable[[], None],
        now: float,
    ) -> None:
        """The worker has just said hello. `request_snapshot` asks it for one, and does not wait."""
        self._incarnation = worker.incarnation
        self._knowledge = knowledge
        knowledge.costs.introduce(
            worker.incarnation, worker.model.name, worker.max_num_batched_tokens, worker.roofline
        )
        self._feed: EventFeed | None = None
        if not knowledge.index.exact.join(worker.incarnation):
            _log.warning("worker %s is one too many for the KV index", worker.worker_id)
            return
        self._feed = EventFeed(knowledge.index.exact, worker.incarnation, request_snapshot)
        self._feed.begin(now)

    def hear(self, message: StepFrame | Heartbeat | KVSnapshot, now: float) -> None:
        if isinstance(message, KVSnapshot):
            if self._feed is not None:
                self._feed.hear_snapshot(message, now)
            return
        if message.kv_events is not None and self._feed is not None:
            self._feed.hear(message.kv_events, now)
        if isinstance(message, StepFrame):
            self._measure(message)

    def close(self) -> None:
        """The connection is gone: what the worker held is not counted on before it says so again."""
        if self._feed is not None:
            self._feed.close()
        self._knowledge.index.drop(self._incarnation)

    def _measure(self, frame: StepFrame) -> None:
        costs = self._knowledge.costs
        if frame.sample is not None:
            costs.observe_step(self._incarnation, frame.sample)
        for one in frame.transfers:
            costs.observe_transfer(one.peer_incarnation, self._incarnation, one.num_bytes, one.seconds)
