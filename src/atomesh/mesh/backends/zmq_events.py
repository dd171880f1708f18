"""Hears the KV events that a vLLM or SGLang engine, or ours, publishes over ZeroMQ."""

import asyncio
import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.event_source import EventSource
from atomesh.mesh.kv_index.counts import IndexCounts
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.protocol.vllm_kv_events import (
    END_OF_REPLAY,
    SEQUENCE_BYTES,
    ForeignBatch,
    ForeignEvent,
    ForeignFormatError,
    open_batch,
    read_events,
)

if TYPE_CHECKING:
    import zmq.asyncio

_log = logging.getLogger(__name__)

REPLAY_S = 2.0  # the longest silence within a replay
QUIET_S = 2.0  # after so long without a batch it is asked whether one was missed
LONGEST_QUIET_S = 60.0  # where nobody answers that
HEARTBEAT_MS = (
    5_000  # a peer that is gone without a word is noticed after two of them, and connected to again
)
LONGEST_RECONNECT_MS = 2_000
MAX_QUEUED = 10_000  # batches that wait here to be read
MAX_MESSAGE_BYTES = 64 * 2**20  # ZeroMQ leaves a peer that sends more, and does not come back
READ_AT_ONCE = 256  # events, without letting others in


def require_zmq() -> ModuleType:
    """zmq.asyncio. Raises ConfigurationError where pyzmq is not installed."""
    try:
        import zmq.asyncio
    except ImportError as error:
        raise ConfigurationError(
            "KV events over ZeroMQ need pyzmq, which is not installed: pip install 'atomesh[zmq]', or leave "
            "events= out"
        ) from error
    return zmq


class ZmqSubscriber:
    """`run` feeds what is published into the index until cancelled; ZeroMQ connects again by itself.

    With a replay endpoint the engine is asked for what it still has at the beginning, at a gap, and after a
    silence. `malformed` counts what was no batch, and events that were none.
    """

    def __init__(
        self, source: EventSource, feed: ForeignFeed, counts: IndexCounts, on_heard: Callable[[], None]
    ) -> None:
        """`on_heard` is called after each batch. Raises ConfigurationError where pyzmq is not installed."""
        self.malformed = 0
        self._source = source
        self._feed = feed
        self._counts = counts
        self._on_heard = on_heard
        self._zmq = require_zmq()
        self._quiet_s = QUIET_S

    async def run(self) -> None:
        with self._zmq.asyncio.Context() as context, self._open(context, self._zmq.SUB) as socket:
            socket.subscribe(self._source.topic.encode())
            socket.connect(self._source.endpoint)
            await self._catch_up(context)
            while True:
                if await socket.poll(self._quiet_s * 1e3):
                    await self._hear(await socket.recv_multipart(), context)
                else:
                    await self._catch_up(context)

    async def _hear(self, parts: list[bytes], context: "zmq.asyncio.Context") -> None:
        heard = await self._read(parts[1:])
        if heard is None:
            return
        if self._feed.hear(*heard) is not None:
            self._counts.gaps += 1
            await self._replay(context)
            self._feed.resume(*heard)
        await self._take_in()

    async def _take_in(self) -> None:
        """What was heard last, letting others in: also between two batches, which are received without."""
        has_more = True
        while has_more:
            await asyncio.sleep(0)
            has_more = self._feed.work_on()
        self._on_heard()

    async def _catch_up(self, context: "zmq.asyncio.Context") -> None:
        """Hear what was published since the last batch; ask less often where nobody answers."""
        if self._source.replay is None or await self._replay(context):
            self._quiet_s = QUIET_S
        else:
            self._quiet_s = min(2 * self._quiet_s, LONGEST_QUIET_S)

    async def _replay(self, context: "zmq.asyncio.Context", *, is_second: bool = False) -> bool:
        """Hear again what the engine still has; False if it did not say all.

        A second time, from its beginning, when that turns out to be another life than was heard.
        """
        if self._source.replay is None:
            return False
        self._counts.replays += 1
        with self._open(context, self._zmq.DEALER) as socket:
            socket.connect(self._source.replay)
            await socket.send_multipart([b"", self._feed.replay_from.to_bytes(SEQUENCE_BYTES, "big")])
            while (parts := await self._next_replayed(socket)) is not None:
                if parts[0] == END_OF_REPLAY:
                    return True
                heard = await self._read(parts)
                if heard is not None and self._feed.resume(*heard) is not None and not is_second:
                    return await self._replay(context, is_second=True)
                await self._take_in()
        _log.warning("the replay of KV events at %s fell silent", self._source.replay)
        return False

    async def _next_replayed(self, socket: "zmq.asyncio.Socket") -> list[bytes] | None:
        """Sequence number and payload; None if nothing comes. vLLM 0.32 says the topic before them."""
        if await socket.poll(REPLAY_S * 1e3):
            return (await socket.recv_multipart())[-2:]
        return None

    def _open(self, context: "zmq.asyncio.Context", kind: int) -> "zmq.asyncio.Socket":
        socket = context.socket(kind)
        for option, value in (
            (self._zmq.LINGER, 0),
            (self._zmq.IPV6, 1),
            (self._zmq.RCVHWM, MAX_QUEUED),
            (self._zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES),
            (self._zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS),
            (self._zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (self._zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_MS),
        ):
            socket.set(option, value)
        return socket

    async def _read(self, parts: list[bytes]) -> tuple[int, ForeignBatch] | None:
        """Sequence number and batch of a message without its topic."""
        try:
            sequence, payload = parts
            if len(sequence) != SEQUENCE_BYTES:
                raise ForeignFormatError(
                    f"the sequence number has {len(sequence)} bytes, not {SEQUENCE_BYTES}"
                )
            batch = open_batch(payload)
        except (ValueError, ForeignFormatError) as error:
            self._miss(1)
            _log.warning("KV events from %s were left out: %s", self._source.endpoint, error)
            return None
        events: list[ForeignEvent] = []
        for start in range(0, len(batch.events), READ_AT_ONCE):
            read, unreadable = read_events(batch.events[start : start + READ_AT_ONCE])
            events += read
            self._miss(unreadable)
            await asyncio.sleep(0)
        return int.from_bytes(sequence, "big"), ForeignBatch(batch.timestamp, tuple(events))

    def _miss(self, number: int) -> None:
        self.malformed += number
        self._counts.malformed += number
