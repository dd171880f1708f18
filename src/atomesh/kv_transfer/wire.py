"""What two transports say to each other; each in a frame of its own with a MAC (channel.py).

both    Proof, Hello                        first of all
both    Said                                a control message of the hand-off
sender  Notice … Stop                       shared memory: these blocks of my pool are ready; not any more
sender  Payload, its bytes, PayloadEnd      a wire: these blocks follow; their checksums
receiver Done or Refused                    to a Notice or a Payload
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from atomesh.protocol.kv_handoff import GRANT_BYTES, HandoffMessage
from atomesh.protocol.kv_layout import KVLayout

MAX_BLOCKS = 2**20  # in one push

GrantToken = Annotated[bytes, Meta(min_length=GRANT_BYTES, max_length=GRANT_BYTES)]
PushId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
BlockNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Indices = Annotated[list[BlockNumber], Meta(min_length=1, max_length=MAX_BLOCKS)]
Digest = Annotated[int, Meta(ge=0)]


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """The MAC of this frame shows that its sender knows the secret."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    incarnation: Annotated[str, Meta(max_length=128)]
    layout: KVLayout


class Said(msgspec.Struct, frozen=True, tag="said"):
    message: HandoffMessage


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """`blocks` are the sender's own, each for the index at its place in `indices`."""

    push_id: PushId
    grant: GrantToken
    indices: Indices
    blocks: Indices


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The blocks of this push may change from now on: what has not been taken is not to be taken."""

    push_id: PushId


class Payload(msgspec.Struct, frozen=True, tag="payload"):
    """The bytes of `len(indices)` blocks follow this frame."""

    push_id: PushId
    grant: GrantToken
    indices: Indices


class PayloadEnd(msgspec.Struct, frozen=True, tag="payload_end"):
    """xxh3 of each block, 64 bits; None: the sender gave up, and what came is worth nothing."""

    push_id: PushId
    digests: Annotated[list[Digest], Meta(max_length=MAX_BLOCKS)] | None


class Done(msgspec.Struct, frozen=True, tag="done"):
    push_id: PushId


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    push_id: PushId
    reason: Annotated[str, Meta(max_length=300)]


WireMessage = Proof | Hello | Said | Notice | Stop | Payload | PayloadEnd | Done | Refused
