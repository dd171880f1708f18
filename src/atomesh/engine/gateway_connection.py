"""One gateway's socket at the worker: read by the event loop, written by whoever has something to say."""

import asyncio
import logging
import secrets
import socket
import threading

from atomesh.clock import Clock
from atomesh.protocol.frames import GatewayMessage, Hello, encode_message
from atomesh.protocol.sealed_channel import NONCE_BYTES, ChannelError
from atomesh.protocol.token_channel import worker_channel
from atomesh.protocol.worker import WorkerDescription

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 2**16
MAX_UNSENT_BYTES = 64 * 2**20


class HandshakeError(Exception):
    """The peer left before it had proved that it knows the secret."""


class GatewayConnection:
    """`send` writes at once, in the calling thread; what the kernel does not take waits for the event loop.

    A gateway that lets more than MAX_UNSENT_BYTES pile up is cut off: it would cost the others their memory.
    """

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, clock: Clock, secret: bytes
    ) -> None:
        self._sock = sock
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._is_open = True
        self._channel = worker_channel(secret, secrets.token_bytes(NONCE_BYTES))
        self.last_news = clock.now()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    async def meet(self) -> None:
        """Returns once the gateway has proved that it knows the secret.

        Raises HandshakeError and ChannelError when it does not, OSError when the connection broke.
        """
        with self._lock:
            self._put(self._channel.greeting)
        while not self._channel.is_proved:
            messages = await self.receive()
            if messages is None:
                raise HandshakeError("the gateway left before it had proved anything")
            if messages:
                raise ChannelError("message", "a message before the hello")

    def introduce(self, worker: WorkerDescription) -> None:
        """What a gateway that has proved itself waits for."""
        with self._lock:
            self._put(self._channel.proof() + self._channel.seal(encode_message(Hello(worker))))

    async def receive(self) -> list[GatewayMessage] | None:
        """What has come, maybe nothing whole; None when the gateway is gone.

        Raises ChannelError, and OSError when the connection broke.
        """
        data = await self._loop.sock_recv(self._sock, RECEIVE_BYTES)
        return self._channel.receive(data) if data else None

    def send(self, body: bytes, *, is_news: bool = True) -> None:
        """An encoded message, to a gateway that has proved itself; as `live_requests.Outlet` has it."""
        if is_news:
            self.last_news = self._clock.now()
        with self._lock:
            if self._is_open:  # sealed in the order that it is written in
                self._put(self._channel.seal(body))

    def _put(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
        elif rest := data[self._write(data) :]:
            self._unsent += rest
            self._loop.call_soon_threadsafe(self._watch)
        if len(self._unsent) > MAX_UNSENT_BYTES:
            _log.warning("a gateway does not read: %d bytes unsent; cut off", len(self._unsent))
            self._break_off()

    def close(self) -> None:
        """Called in the event loop, when nobody receives any more."""
        with self._lock:
            self._is_open = False
            self._unsent.clear()
            self._loop.remove_writer(self._sock)
            self._sock.close()

    def _write(self, data: bytes | bytearray) -> int:
        """How many bytes the kernel took."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._break_off()
            return len(data)

    def _break_off(self) -> None:
        """Wake the reader, whose end closes everything."""
        self._is_open = False
        self._unsent.clear()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            _log.debug("the connection was already gone")

    def _watch(self) -> None:
        with self._lock:
            if self._is_open and self._unsent:
                self._loop.add_writer(self._sock, self._flush)

    def _flush(self) -> None:
        with self._lock:
            if self._unsent:
                del self._unsent[: self._write(self._unsent)]
            if not self._unsent:
                self._loop.remove_writer(self._sock)
