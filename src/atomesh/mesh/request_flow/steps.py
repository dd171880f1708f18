"""What a request's flow asks for, and what it hears in return: `event = yield action`.

    action         event
    Place          Placed or Nowhere
    PlaceRest      Placed or Nowhere
    Mint           Minted
    MintFetch      Minted
    SendLeg        None: the leg is on its way, and is named by this very object from now on
    Wait           Arrived or LegFailed
    Emit           None, once the client's side has taken it; with `then`, as Wait for that leg after it
    Release        None: the worker has nothing left to do for the leg
    Abort          None: the worker is told to forget the leg
    Bar            None

Whoever drives a flow aborts the legs that are still open when it ends, however it ends. What is made for
every token is a msgspec Struct, which is made sooner than a frozen dataclass.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from atomesh.errors import AtomeshError
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import Placement, Rest
from atomesh.protocol.generation import GenerationRequest, Leg, TokenDelta
from atomesh.protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Place:
    """Find workers for a whole request, none of them of the `excluded` incarnations.

    `is_charged`: it was refused elsewhere, and is tried once more at the cost of the retry budget.
    """

    request: GenerationRequest
    excluded: frozenset[str]
    is_charged: bool = False


@dataclass(frozen=True, slots=True)
class PlaceRest:
    """Find workers for the rest of an answer, none of them of the `excluded` incarnations."""

    rest: Rest
    excluded: frozenset[str]


@dataclass(frozen=True, slots=True)
class Mint:
    """A ticket for one attempt's hand-off; it is released when the flow ends."""

    request_id: str
    choices: int
    prefill: WorkerSnapshot
    decode: WorkerSnapshot


@dataclass(frozen=True, slots=True)
class MintFetch:
    """A ticket for one attempt's prefix, to go from a worker that holds it to the one that computes the
    prompt; it is released when the flow ends."""

    request_id: str
    lender: WorkerSnapshot
    borrower: WorkerSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class SendLeg:
    """`leg` is None for a whole request."""

    worker: WorkerSnapshot
    request: GenerationRequest
    leg: Leg | None


@dataclass(frozen=True, slots=True)
class Wait:
    """For the leg's next deltas. Should the worker of `source`, whose KV it waits for, be lost and nothing
    come soon after that, the answer is that `source` has failed, and the leg is still open."""

    leg: SendLeg
    source: SendLeg | None = None


class Emit(msgspec.Struct, frozen=True):
    """Then wait for `then`, if any; with `is_steady`, mere tokens that it brings may be told late."""

    deltas: list[TokenDelta]
    then: SendLeg | None = None
    is_steady: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    leg: SendLeg


@dataclass(frozen=True, slots=True)
class Abort:
    leg: SendLeg


@dataclass(frozen=True, slots=True)
class Bar:
    """The request is suspected of killing workers: its prompt is to touch none for a while."""

    request: GenerationRequest


Action = Place | PlaceRest | Mint | MintFetch | SendLeg | Wait | Emit | Release | Abort | Bar


@dataclass(frozen=True, slots=True)
class Placed:
    placement: Placement


@dataclass(frozen=True, slots=True)
class Nowhere:
    error: AtomeshError


@dataclass(frozen=True, slots=True)
class Minted:
    ticket: Ticket


class Arrived(msgspec.Struct, frozen=True):
    deltas: list[TokenDelta]


@dataclass(frozen=True, slots=True)
class LegFailed:
    """The worker's own error; with `is_lost` the worker itself is gone, and `error` says so.

    `is_refusal`: a leg of a hand-off, or of a move, was turned away before its first token.
    `is_suspect`: for all that one can know, the worker was lost because of this leg.
    """

    leg: SendLeg
    error: AtomeshError
    is_lost: bool = False
    is_refusal: bool = False
    is_suspect: bool = True


Event = Placed | Nowhere | Minted | Arrived | LegFailed
T = TypeVar("T")
Flow = Generator[Action, Event | None, T]
