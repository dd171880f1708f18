"""Sealed frames between two who share a secret: bytes in, bodies out; knows no socket and no message.

Each side greets with a nonce. From both nonces and the secret come two keys, one a direction, and every frame
carries a MAC over its place in the stream and its body: what is forged, replayed, reordered, left out or
changed on the way is refused alike. Who relays a connection can cut it, and no more. Nothing that a stranger
sends gets out of here.

    greeting  magic, nonce          frame  length of body (4 bytes), MAC (16 bytes), body
"""

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Literal

NONCE_BYTES = 32
MAC_BYTES = 16

Side = Literal["caller", "listener"]
Fault = Literal["greeting", "secret", "mac", "size", "message"]

_HEAD = struct.Struct("<I")
_PLACE = struct.Struct("<Q")
_FRAME_START = _HEAD.size + MAC_BYTES


class ChannelError(Exception):
    """The connection is of no more use; `fault` is what the refusal is counted as."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class PlaneFormat:
    """Keys of one plane are of no use on another. `label` has 16 bytes at most.

    `max_first_frame_bytes` is for someone who has proved nothing yet.
    """

    magic: bytes
    label: bytes
    max_frame_bytes: int
    max_first_frame_bytes: int

    @property
    def greeting_bytes(self) -> int:
        return len(self.magic) + NONCE_BYTES


class SealedChannel:
    """One side of one connection. One thread may `seal` while another reads."""

    def __init__(self, plane: PlaneFormat, secret: bytes, side: Side, nonce: bytes) -> None:
        """`nonce`: NONCE_BYTES that were never used before."""
        self.greeting = plane.magic + nonce
        self._plane = plane
        self._secret = secret
        self._side = side
        self._nonce = nonce
        self._buffer = bytearray()
        self._writing: _Macs | None = None
        self._reading: _Macs | None = None

    @property
    def is_keyed(self) -> bool:
        """The peer's greeting is there: `seal` may be used."""
        return self._reading is not None

    @property
    def is_proved(self) -> bool:
        """A frame has come that only who knows the secret could write, on this connection."""
        return self._reading is not None and self._reading.place > 0

    def feed(self, data: bytes | memoryview) -> None:
        """Raises ChannelError when the peer does not greet as one of us."""
        self._buffer += data
        if not self.is_keyed:
            self._take_greeting()

    def next_body(self) -> bytes | None:
        """The next one that is complete. Raises ChannelError; the channel is of no use after that."""
        if self._reading is None or len(self._buffer) < _HEAD.size:
            return None
        (size,) = _HEAD.unpack_from(self._buffer)
        limit = self._plane.max_frame_bytes if self._reading.place else self._plane.max_first_frame_bytes
        if size > limit:
            raise ChannelError("size", f"a frame announces {size} bytes; the limit is {limit}")
        end = _FRAME_START + size
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            mac, body = bytes(view[_HEAD.size : _FRAME_START]), bytes(view[_FRAME_START:end])
        del self._buffer[:end]
        self._check(self._reading, mac, body)
        return body

    def take_raw(self, limit: int) -> bytes:
        """Up to `limit` bytes that came behind the last frame and are none."""
        taken = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return taken

    def seal(self, body: bytes) -> bytes:
        """A frame, to be written after those sealed before. Raises ChannelError when it is too long."""
        if self._writing is None:
            raise ChannelError("message", "nothing can be said before the peer's greeting")
        limit = self._plane.max_frame_bytes
        if len(body) > limit:
            raise ChannelError("size", f"a frame has {len(body)} bytes; the limit is {limit}")
        return b"".join((_HEAD.pack(len(body)), self._writing.next(body), body))

    def _take_greeting(self) -> None:
        magic = self._plane.magic
        if not magic.startswith(bytes(self._buffer[: len(magic)])):
            raise ChannelError("greeting", "the peer does not speak this protocol")
        if len(self._buffer) < self._plane.greeting_bytes:
            return
        theirs = self.take_raw(self._plane.greeting_bytes)[len(magic) :]
        is_caller = self._side == "caller"
        nonces = self._nonce + theirs if is_caller else theirs + self._nonce
        self._writing = self._macs(self._side, nonces)
        self._reading = self._macs("listener" if is_caller else "caller", nonces)

    def _macs(self, writer: Side, nonces: bytes) -> "_Macs":
        told = self._plane.label + b" " + writer.encode() + b"\0" + nonces
        return _Macs(hmac.new(self._secret, told, hashlib.sha256).digest(), self._plane.label)

    def _check(self, reading: "_Macs", mac: bytes, body: bytes) -> None:
        is_first = reading.place == 0
        if hmac.compare_digest(mac, reading.next(body)):
            return
        reading.place = 0 if is_first else reading.place
        if is_first:
            raise ChannelError("secret", "the peer does not know the cluster secret")
        raise ChannelError("mac", "a frame was forged, replayed, left out or damaged")


class _Macs:
    """Of the frames of one direction, in turn: keyed BLAKE2b (RFC 7693) over place and body."""

    def __init__(self, key: bytes, label: bytes) -> None:
        self.place = 0
        self._keyed = hashlib.blake2b(key=key, digest_size=MAC_BYTES, person=label)

    def next(self, body: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(_PLACE.pack(self.place))
        mac.update(body)
        self.place += 1
        return mac.digest()
