"""Moves KV blocks and control messages between workers; knows no requests.

A transport has one thread of its own for all bytes; every method returns at once and may be called from any
one thread. What came of it is read with `poll`, in the order in which it happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atomesh.protocol.kv_handoff import HandoffMessage
from atomesh.protocol.step_sample import TransferSample

LEAST_BYTES_S = 2**20  # over a slower link nothing is worth moving


@dataclass(frozen=True, slots=True)
class BlockPush:
    """`index` is the block's place in the sequence, `block` its number in the sender's own pool."""

    index: int
    block: int


@dataclass(frozen=True, slots=True)
class Heard:
    """`incarnation` is what the peer has proved to be, at the connection's hello."""

    peer: str
    message: HandoffMessage
    incarnation: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The receiver holds these blocks, verified; the sender's copies are no longer read."""

    push_id: int


@dataclass(frozen=True, slots=True)
class PushFailed:
    """Refused by the receiver, damaged, or past its deadline; the sender's copies are no longer read."""

    push_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """Blocks pushed under `grant` are in their places, verified; by index in the sequence.

    `sample` says how long they took, from the first that was heard of them, where that was measured.
    """

    grant: bytes
    indices: tuple[int, ...]
    sample: TransferSample | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Arriving:
    """Blocks pushed under `grant` come along, so far without a whole push: said now and then, of bytes that
    are written to where the grant admits them."""

    grant: bytes


@dataclass(frozen=True, slots=True)
class Damaged:
    """Something pushed under `grant` failed its checksum, its size or its right; no block of it counts."""

    grant: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """After `cancel`: nothing will be written under `grant` any more, its blocks may be used again."""

    grant: bytes


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection is gone or was refused, and all that was under way over it. Sent once a connection."""

    peer: str
    reason: str


TransportEvent = Heard | Pushed | PushFailed | Received | Arriving | Damaged | Fenced | PeerLost


class KVTransport(Protocol):
    """A peer is named by its address if we called it, by a name of the transport's own if it called us."""

    @property
    def address(self) -> str:
        """Where other workers reach this one."""
        ...

    @property
    def refusals(self) -> Mapping[str, int]:
        """How often what was refused, of strangers and of peers, by reason."""
        ...

    def send(self, peer: str, message: HandoffMessage) -> None:
        """In order with everything else sent to the peer; the connection is made if there is none."""
        ...

    def push(
        self, peer: str, grant: bytes, blocks: Sequence[BlockPush], push_id: int, deadline_s: float
    ) -> None:
        """Bring blocks to where the peer admits them. Ends in Pushed, PushFailed or PeerLost.

        Until then the blocks' content must not change. `deadline_s` counts from now, and again from its end
        as long as bytes get through to the peer, LEAST_BYTES_S of them a second.
        """
        ...

    def admit(self, peer: str, grant: bytes, targets: Mapping[int, int]) -> None:
        """Let `peer` write under `grant`: the block with index i goes to our block `targets[i]`, once."""
        ...

    def cancel(self, grant: bytes) -> None:
        """Admit no more under `grant`. Ends in Fenced, also for a grant that is unknown."""
        ...

    def poll(self) -> list[TransportEvent]: ...

    def close(self) -> None:
        """Cut all connections and end the thread; nothing is written after it returns."""
        ...
