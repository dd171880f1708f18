"""The token plane on one connection: both greet, both prove the secret, the worker says hello; then messages.

A proof is a sealed frame without a body, so that nothing is decoded, nor more than a few bytes kept, of one
who has not proved himself. The gateway proves itself first: a worker says nothing about itself to a stranger.

    gateway  greeting, proof                       messages
    worker   greeting          proof, hello        messages
"""

from typing import Any, Generic, TypeVar

from atomesh.protocol.frames import MAX_FRAME_BYTES, GatewayMessage, MessageDecoder, WorkerMessage
from atomesh.protocol.sealed_channel import PlaneFormat, SealedChannel, Side

TOKEN_PLANE = PlaneFormat(
    magic=b"ATOMesh tokens 1",
    label=b"atomesh tokens",
    max_frame_bytes=MAX_FRAME_BYTES,
    max_first_frame_bytes=0,
)
M = TypeVar("M")


class TokenChannel(Generic[M]):
    """One side of one connection. One thread may `seal` while another receives."""

    def __init__(self, secret: bytes, side: Side, nonce: bytes, messages: Any) -> None:
        """`messages` is the union of what this side may hear; `nonce` as SealedChannel wants it."""
        self._sealed = SealedChannel(TOKEN_PLANE, secret, side, nonce)
        self._decoder = MessageDecoder[M](messages)

    @property
    def greeting(self) -> bytes:
        """To be written first."""
        return self._sealed.greeting

    @property
    def is_keyed(self) -> bool:
        """The peer has greeted: `proof` and `seal` may be used."""
        return self._sealed.is_keyed

    @property
    def is_proved(self) -> bool:
        """The peer knows the secret."""
        return self._sealed.is_proved

    def receive(self, data: bytes) -> list[M]:
        """The messages completed by `data`, in order. Raises ChannelError; of no use after that."""
        self._sealed.feed(data)
        messages: list[M] = []
        is_proof = not self.is_proved
        while (body := self._sealed.next_body()) is not None:
            if not is_proof:
                messages.append(self._decoder.decode(body))
            is_proof = False
        return messages

    def proof(self) -> bytes:
        """The first frame of either side."""
        return self.seal(b"")

    def seal(self, body: bytes) -> bytes:
        """The frame of an encoded message; frames are to be written in the order they were sealed in."""
        return self._sealed.seal(body)


def gateway_channel(secret: bytes, nonce: bytes) -> TokenChannel[WorkerMessage]:
    return TokenChannel(secret, "caller", nonce, WorkerMessage)


def worker_channel(secret: bytes, nonce: bytes) -> TokenChannel[GatewayMessage]:
    return TokenChannel(secret, "listener", nonce, GatewayMessage)
