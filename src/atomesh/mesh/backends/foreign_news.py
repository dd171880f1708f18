"""What is learnt of one life of an engine that is not ours: by its events, what it is sent, its answers."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.event_source import EventSource
from atomesh.mesh.backends.prefill_pace import PrefillPace, SentPrompt
from atomesh.mesh.backends.streamed_answers import DeltaSink
from atomesh.mesh.backends.zmq_events import ZmqSubscriber
from atomesh.mesh.kv_index.foreign import Translator
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.protocol.block_hash import model_hasher
from atomesh.protocol.generation import TokenDelta
from atomesh.protocol.worker import WorkerDescription

_log = logging.getLogger(__name__)


class ForeignNews:
    """The engine is in the approximate index until it says that it holds a block, if it ever does."""

    def __init__(
        self, worker: WorkerDescription, source: EventSource | None, context: BackendContext
    ) -> None:
        """The engine has just been introduced. Raises ConfigurationError where pyzmq is missing."""
        self._worker = worker
        self._source = source
        self._index = context.knowledge.index
        self._is_warned = False
        self._hearing: asyncio.Task[None] | None = None
        self._pace = PrefillPace()
        self._clock = context.clock
        self._costs = context.knowledge.costs
        self._costs.introduce(worker.incarnation, worker.model.name)
        self._guess()
        translator = Translator(
            model_hasher(context.secret, worker.model), is_unsalted=source is not None and source.is_unsalted
        )
        self._feed = ForeignFeed(self._index, worker.incarnation, translator)
        if source is not None:
            subscriber = ZmqSubscriber(source, self._feed, self._index.counts, self._look)
            self._hearing = asyncio.create_task(self._hear(subscriber))

    def measured(self, num_tokens: int, stream: DeltaSink) -> DeltaSink:
        """The stream of a leg, sent now, that computes a prompt of so many tokens."""
        prompt = self._pace.sent(num_tokens, self._clock.now())
        return _MeasuredStream(stream, lambda deltas: self._heed(prompt, deltas))

    def _heed(self, prompt: SentPrompt, deltas: Sequence[TokenDelta]) -> None:
        self._pace.began(prompt, self._clock.now())
        for delta in deltas:
            if delta.cached_tokens is not None:
                sample = self._pace.counted(prompt, delta.cached_tokens)
                if sample is not None:
                    self._costs.observe_step(self._worker.incarnation, sample)

    async def close(self) -> None:
        """The engine is gone, and what it held with it."""
        if self._hearing is not None:
            self._hearing.cancel()
        self._index.drop(self._worker.incarnation)
        if self._hearing is not None:
            await asyncio.gather(self._hearing, return_exceptions=True)

    def _guess(self) -> None:
        self._index.approximate.join(self._worker.incarnation, max(self._worker.model.num_blocks, 1))

    async def _hear(self, subscriber: ZmqSubscriber) -> None:
        try:
            await subscriber.run()
        except Exception:  # noqa: BLE001  one engine's events must not end the others' service
            _log.exception("KV events of %s are heard no more; it is guessed at", self._worker.worker_id)
            self._index.drop(self._worker.incarnation)
            self._guess()

    def _look(self) -> None:
        if self._is_warned or not self._feed.left_out("unsaid"):
            return
        self._is_warned = True
        _log.warning(
            "the KV events of %s do not say under which salt blocks lie, so these are not indexed: with "
            "salts=none beside events= they are, which is right if no prompt there has a cache_salt",
            self._worker.worker_id,
        )


class _MeasuredStream:
    """Implements DeltaSink: tells of what comes, and passes it on."""

    def __init__(self, stream: DeltaSink, tell: Callable[[Sequence[TokenDelta]], None]) -> None:
        self._stream = stream
        self._tell = tell

    def push(self, deltas: list[TokenDelta]) -> bool:
        self._tell(deltas)
        return self._stream.push(deltas)
