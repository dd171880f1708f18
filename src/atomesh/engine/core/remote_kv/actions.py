"""What the hand-off's state machines want done; the connector does it, with a transport."""

from collections.abc import Mapping
from dataclasses import dataclass

from atomesh.protocol.kv_handoff import HandoffMessage


@dataclass(frozen=True, slots=True)
class Send:
    peer: str
    message: HandoffMessage


@dataclass(frozen=True, slots=True)
class Push:
    """`blocks` are our block numbers by index in the sequence; they stay held until the push has ended.

    It fails when it has not ended `deadline_s` seconds from now.
    """

    peer: str
    grant: bytes
    blocks: Mapping[int, int]
    push_id: int
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Admit:
    """`targets` are our block numbers by index in the sequence."""

    peer: str
    grant: bytes
    targets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Fence the grant; its blocks stay quarantined until that has happened."""

    grant: bytes


Action = Send | Push | Admit | Cancel
