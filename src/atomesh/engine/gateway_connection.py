"""One gateway's socket at the worker: read by the event loop, written by whoever has something to say."""

import asyncio
import logging
import socket
import threading

from atomesh.clock import Clock

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 2**16
MAX_UNSENT_BYTES = 64 * 2**20


class GatewayConnection:
    """`send` writes at once, in the calling thread; what the kernel does not take waits for the event loop.

    A gateway that lets more than MAX_UNSENT_BYTES pile up is cut off: it would cost the others their memory.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._sock = sock
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._is_open = True
        self.last_sent = clock.now()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    async def receive(self) -> bytes:
        """Some bytes; empty when the gateway is gone. Raises OSError when the connection broke."""
        return await self._loop.sock_recv(self._sock, RECEIVE_BYTES)

    def send(self, data: bytes) -> None:
        self.last_sent = self._clock.now()
        with self._lock:
            if not self._is_open:
                return
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
