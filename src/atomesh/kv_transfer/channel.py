"""The KV plane's messages in sealed frames between two who share a secret; knows no socket."""

import msgspec

from atomesh.kv_transfer.wire import WireMessage
from atomesh.protocol.sealed_channel import (
    MAC_BYTES,
    NONCE_BYTES,
    ChannelError,
    PlaneFormat,
    SealedChannel,
    Side,
)

__all__ = ["MAC_BYTES", "NONCE_BYTES", "Channel", "ChannelError", "Side"]

MAGIC = b"ATOMesh KV 1"
MAX_FRAME_BYTES = 4 * 2**20
MAX_FIRST_FRAME_BYTES = 4096  # from someone who has proved nothing yet
KV_PLANE = PlaneFormat(MAGIC, b"atomesh kv", MAX_FRAME_BYTES, MAX_FIRST_FRAME_BYTES)
GREETING_BYTES = KV_PLANE.greeting_bytes

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WireMessage)


class Channel(SealedChannel):
    """One side of one connection."""

    def __init__(self, secret: bytes, side: Side, nonce: bytes) -> None:
        super().__init__(KV_PLANE, secret, side, nonce)

    def next_message(self) -> WireMessage | None:
        """The next one that is complete. Raises ChannelError; the channel is of no use after that."""
        body = self.next_body()
        return None if body is None else _decode(body)

    def encode(self, message: WireMessage) -> bytes:
        """A frame, to be written after those encoded before. Raises ChannelError when it is too long."""
        return self.seal(_encoder.encode(message))


def _decode(body: bytes) -> WireMessage:
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ChannelError("message", f"a frame is not a message of this plane: {error}") from error
