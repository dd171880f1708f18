"""The token plane's frames: length-prefixed msgpack, one message a frame.

A frame is a 4-byte little-endian length and that many bytes of msgpack, a map whose "type" names the message.
The gateway speaks first of nothing: a worker that accepts a connection sends Challenge, and only after a
right answer Hello.
"""

import struct
from typing import Any, Generic, TypeVar

import msgspec

from atomesh.errors import AtomeshError
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, WorkerDescription

MAX_FRAME_BYTES = 64 * 2**20
_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The peer broke the protocol; the connection cannot go on."""


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """Worker → gateway, first: prove that you know the secret."""

    nonce: bytes


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Gateway → worker: the proof over the worker's nonce, and a nonce of its own."""

    proof: bytes
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Worker → gateway: the proof over the gateway's nonce, and who I am."""

    proof: bytes
    worker: WorkerDescription


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerationRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Gateway → worker: forget all cached prefixes that no running request holds."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Worker → gateway when no step frame has gone for a while: the engine thread lives, and its load."""

    load: LoadReport


class StepFrame(msgspec.Struct, frozen=True, tag="step"):
    """Worker → gateway: all that one engine step brought for this gateway's requests."""

    deltas: list[TokenDelta]
    load: LoadReport


GatewayMessage = Answer | Submit | Abort | ResetPrefixCache
WorkerMessage = Challenge | Hello | StepFrame | Heartbeat
Message = GatewayMessage | WorkerMessage

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def encode_frame(message: Message) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a {type(message).__name__} frame has {len(body)} bytes; the limit is {MAX_FRAME_BYTES}"
        )
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[M]):
    """Bytes in, messages out; knows no socket. FrameError on a frame too long, malformed or of a wrong
    type."""

    def __init__(self, messages: Any) -> None:
        """`messages` is the union of what this side may hear: GatewayMessage or WorkerMessage."""
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages completed by `data`, in order; what is incomplete is kept for the next call."""
        self._buffer += data
        messages: list[M] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame announces {size} bytes; the limit is {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            messages.append(self._decode(memoryview(self._buffer)[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages

    def _decode(self, body: memoryview) -> M:
        try:
            with body:
                return self._decoder.decode(body)
        except (msgspec.DecodeError, AtomeshError) as error:
            raise FrameError(f"a frame is not a message of this plane: {error}") from error
