"""Publishes KV events over ZeroMQ as vLLM 0.32 does, for other routers to read. They carry users' tokens."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atomesh.engine.foreign_events import ForeignWords
from atomesh.errors import ConfigurationError
from atomesh.protocol.kv_events import KVEvents
from atomesh.protocol.vllm_kv_events import END_OF_REPLAY, SEQUENCE_BYTES, encode_batch

if TYPE_CHECKING:
    import zmq

_log = logging.getLogger(__name__)

MAX_UNSENT = 100_000  # batches that a slow subscriber may be behind
MAX_KEPT = 10_000  # batches that can be replayed
MAX_KEPT_BYTES = 64 * 2**20
POLL_MS = 100


@dataclass(frozen=True, slots=True)
class PublisherAddress:
    """Where to listen for subscribers, and for who has missed something; ZeroMQ endpoints, as tcp://*:5557."""

    events: str
    replay: str | None = None
    topic: str = ""


class ZmqPublisher:
    """Implements EventSink. Replays the last MAX_KEPT batches, or as many as MAX_KEPT_BYTES hold."""

    def __init__(self, address: PublisherAddress, words: ForeignWords) -> None:
        """Raises ConfigurationError where pyzmq is not installed, or the address cannot be had."""
        try:
            import zmq
        except ImportError as error:
            raise ConfigurationError(
                "publishing KV events needs pyzmq, which is not installed: pip install 'atomesh[zmq]'"
            ) from error
        self._zmq = zmq
        self._words = words
        self._topic = address.topic.encode()
        self._context = zmq.Context()
        self._socket = self._bind(zmq.PUB, address.events)
        self._replay = None if address.replay is None else self._bind(zmq.ROUTER, address.replay)
        self._sequence = 0
        self._kept: deque[tuple[int, bytes]] = deque()
        self._num_kept_bytes = 0
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve_replays, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEvents, held: Callable[[], Iterable[bytes]]) -> None:
        events = self._words.of(batch, held)
        if not events:
            return
        payload = encode_batch(time.time(), events)
        sequence, self._sequence = self._sequence, self._sequence + 1
        self._keep(sequence, payload)
        self._socket.send_multipart((self._topic, sequence.to_bytes(SEQUENCE_BYTES, "big"), payload))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _bind(self, kind: int, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set(self._zmq.SNDHWM, MAX_UNSENT)
        try:
            socket.bind(endpoint)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigurationError(
                f"cannot publish KV events at {endpoint!r}: {error}; give an endpoint like tcp://127.0.0.1:5557"
            ) from error
        return socket

    def _keep(self, sequence: int, payload: bytes) -> None:
        with self._lock:
            self._kept.append((sequence, payload))
            self._num_kept_bytes += len(payload)
            while len(self._kept) > MAX_KEPT or self._num_kept_bytes > MAX_KEPT_BYTES:
                self._num_kept_bytes -= len(self._kept.popleft()[1])

    def _serve_replays(self) -> None:
        while not self._closing.is_set():
            if self._replay is None:
                self._closing.wait()
            elif self._replay.poll(POLL_MS):
                self._answer(self._replay, self._replay.recv_multipart())

    def _answer(self, socket: "zmq.Socket[bytes]", request: list[bytes]) -> None:
        if len(request) != 3 or len(request[2]) != SEQUENCE_BYTES:
            _log.warning("a replay of KV events was asked for in %d parts; it takes 3", len(request))
            return
        peer, first = request[0], int.from_bytes(request[2], "big")
        with self._lock:
            kept = [one for one in self._kept if one[0] >= first]
        for sequence, payload in kept:
            number = sequence.to_bytes(SEQUENCE_BYTES, "big")
            socket.send_multipart((peer, b"", self._topic, number, payload))
        socket.send_multipart((peer, b"", b"", END_OF_REPLAY, b""))
