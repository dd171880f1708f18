"""Hears the KV events that a vLLM engine, or ours, publishes over ZeroMQ."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.errors import ConfigurationError
from atomesh.mesh.kv_index.foreign_order import ForeignFeed
from atomesh.protocol.vllm_kv_events import (
    END_OF_REPLAY,
    SEQUENCE_BYTES,
    ForeignBatch,
    ForeignFormatError,
    decode_batch,
)

if TYPE_CHECKING:
    import zmq.asyncio

_log = logging.getLogger(__name__)

REPLAY_S = 5.0  # the longest silence within a replay
MAX_QUEUED = 10_000  # batches that wait here to be read
MAX_MESSAGE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where an engine publishes, and where it replays; without `replay` what is missed is lost."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


class ZmqSubscriber:
    """`run` feeds what is published into the index until cancelled; `malformed` counts what was no batch."""

    def __init__(self, source: EventSource, feed: ForeignFeed) -> None:
        """Raises ConfigurationError where pyzmq is not installed."""
        try:
            import zmq.asyncio
        except ImportError as error:
            raise ConfigurationError(
                "KV events over ZeroMQ need pyzmq, which is not installed: pip install 'atomesh[zmq]'"
            ) from error
        self.malformed = 0
        self._source = source
        self._feed = feed
        self._zmq = zmq

    async def run(self) -> None:
        with self._zmq.asyncio.Context() as context, self._open(context, self._zmq.SUB) as socket:
            socket.set(self._zmq.RCVHWM, MAX_QUEUED)
            socket.subscribe(self._source.topic.encode())
            socket.connect(self._source.endpoint)
            while True:
                await self._hear(await socket.recv_multipart(), context)

    async def _hear(self, parts: list[bytes], context: "zmq.asyncio.Context") -> None:
        heard = self._read(parts[1:])
        if heard is None:
            return
        missing = self._feed.hear(*heard)
        if missing is not None:
            await self._replay(missing, context)
            self._feed.resume(*heard)

    async def _replay(self, first: int, context: "zmq.asyncio.Context") -> None:
        """Hear again what the engine still has from `first` on."""
        if self._source.replay is None:
            return
        with self._open(context, self._zmq.DEALER) as socket:
            socket.connect(self._source.replay)
            await socket.send_multipart([b"", first.to_bytes(SEQUENCE_BYTES, "big")])
            try:
                while await self._hear_replayed(socket):
                    pass
            except TimeoutError:
                _log.warning("the replay of KV events at %s fell silent", self._source.replay)

    async def _hear_replayed(self, socket: "zmq.asyncio.Socket") -> bool:
        """False at the end of the replay. Raises TimeoutError."""
        _, *parts = await asyncio.wait_for(socket.recv_multipart(), REPLAY_S)
        if parts[:1] == [END_OF_REPLAY]:
            return False
        heard = self._read(parts)
        if heard is not None:
            self._feed.resume(*heard)
        return True

    def _open(self, context: "zmq.asyncio.Context", kind: int) -> "zmq.asyncio.Socket":
        socket = context.socket(kind)
        socket.set(self._zmq.LINGER, 0)
        socket.set(self._zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        return socket

    def _read(self, parts: list[bytes]) -> tuple[int, ForeignBatch] | None:
        """Sequence number and batch of a message without its topic."""
        try:
            sequence, payload = parts
            if len(sequence) != SEQUENCE_BYTES:
                raise ForeignFormatError(
                    f"the sequence number has {len(sequence)} bytes, not {SEQUENCE_BYTES}"
                )
            return int.from_bytes(sequence, "big"), decode_batch(payload)
        except (ValueError, ForeignFormatError) as error:
            self.malformed += 1
            _log.warning("KV events from %s were left out: %s", self._source.endpoint, error)
            return None
