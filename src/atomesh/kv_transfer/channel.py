"""Frames between two who share a secret: bytes in, messages out; knows no socket.

Each side greets with a nonce. From both nonces and the secret come two keys, one a direction, and every frame
carries a MAC over its place in the stream and its content: forged, replayed, reordered and cut frames are all
refused alike. Nothing that a stranger sends is decoded.

    greeting  MAGIC, nonce          frame  length of body (4 bytes), MAC (16 bytes), body
"""

import hashlib
import hmac
import struct
from typing import Literal

import msgspec

from atomesh.kv_transfer.wire import WireMessage

MAGIC = b"ATOMesh KV 1"
NONCE_BYTES = 32
GREETING_BYTES = len(MAGIC) + NONCE_BYTES
MAC_BYTES = 16
MAX_FRAME_BYTES = 4 * 2**20
MAX_FIRST_FRAME_BYTES = 4096  # from someone who has proved nothing yet

Side = Literal["caller", "listener"]
Fault = Literal["greeting", "secret", "mac", "size", "message"]

_HEAD = struct.Struct("<I")
_FRAME_START = _HEAD.size + MAC_BYTES
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WireMessage)


class ChannelError(Exception):
    """The connection is of no more use; `fault` is what the refusal is counted as."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Channel:
    """One side of one connection."""

    def __init__(self, secret: bytes, side: Side, nonce: bytes) -> None:
        self.greeting = MAGIC + nonce
        self._secret = secret
        self._side = side
        self._nonce = nonce
        self._buffer = bytearray()
        self._write_key = b""
        self._read_key = b""
        self._written = 0
        self._read = 0

    @property
    def is_keyed(self) -> bool:
        """The peer's greeting is there: `encode` may be used."""
        return bool(self._read_key)

    def feed(self, data: bytes | memoryview) -> None:
        """Raises ChannelError when the peer does not greet as one of us."""
        self._buffer += data
        if not self.is_keyed:
            self._take_greeting()

    def next_message(self) -> WireMessage | None:
        """The next one that is complete. Raises ChannelError; the channel is of no use after that."""
        if not self.is_keyed or len(self._buffer) < _HEAD.size:
            return None
        (size,) = _HEAD.unpack_from(self._buffer)
        limit = MAX_FRAME_BYTES if self._read else MAX_FIRST_FRAME_BYTES
        if size > limit:
            raise ChannelError("size", f"a frame announces {size} bytes; the limit is {limit}")
        end = _FRAME_START + size
        if len(self._buffer) < end:
            return None
        mac, body = bytes(self._buffer[_HEAD.size : _FRAME_START]), bytes(self._buffer[_FRAME_START:end])
        del self._buffer[:end]
        self._check(mac, body)
        return _decode(body)

    def take_raw(self, limit: int) -> bytes:
        """Up to `limit` bytes that came behind the last message and are not a frame."""
        taken = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return taken

    def encode(self, message: WireMessage) -> bytes:
        """A frame, to be written after those encoded before. Raises ChannelError when it is too long."""
        if not self.is_keyed:
            raise ChannelError("message", "nothing can be said before the peer's greeting")
        body = _encoder.encode(message)
        if len(body) > MAX_FRAME_BYTES:
            kind = type(message).__name__
            raise ChannelError("size", f"a {kind} has {len(body)} bytes; the limit is {MAX_FRAME_BYTES}")
        mac = _mac(self._write_key, self._written, body)
        self._written += 1
        return b"".join((_HEAD.pack(len(body)), mac, body))

    def _take_greeting(self) -> None:
        if not MAGIC.startswith(bytes(self._buffer[: len(MAGIC)])):
            raise ChannelError("greeting", "the peer does not speak this protocol")
        if len(self._buffer) < GREETING_BYTES:
            return
        theirs = self.take_raw(GREETING_BYTES)[len(MAGIC) :]
        is_caller = self._side == "caller"
        nonces = self._nonce + theirs if is_caller else theirs + self._nonce
        self._write_key = _key(self._secret, self._side, nonces)
        self._read_key = _key(self._secret, "listener" if is_caller else "caller", nonces)

    def _check(self, mac: bytes, body: bytes) -> None:
        if not hmac.compare_digest(mac, _mac(self._read_key, self._read, body)):
            if self._read == 0:
                raise ChannelError("secret", "the peer does not know the cluster secret")
            raise ChannelError("mac", "a frame was forged, replayed or damaged")
        self._read += 1


def _key(secret: bytes, writer: Side, nonces: bytes) -> bytes:
    return hmac.new(secret, b"atomesh kv plane " + writer.encode() + b"\0" + nonces, hashlib.sha256).digest()


def _mac(key: bytes, place: int, body: bytes) -> bytes:
    """Keyed BLAKE2b (RFC 7693)."""
    return hashlib.blake2b(
        struct.pack("<Q", place) + body, key=key, digest_size=MAC_BYTES, person=b"atomesh kv"
    ).digest()


def _decode(body: bytes) -> WireMessage:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ChannelError("message", f"a frame is not a message of this plane: {error}") from error
