"""The token plane's messages, one a frame: msgpack, a map whose "type" names the message.

Their frames, and how a connection begins: token_channel.py.
"""

from typing import Any, Generic, TypeVar

import msgspec

from atomesh.errors import AtomeshError
from atomesh.protocol.generation import GenerationRequest, Leg, TokenDelta
from atomesh.protocol.kv_events import KVEvents, KVSnapshot, RequestKVSnapshot
from atomesh.protocol.sealed_channel import ChannelError
from atomesh.protocol.step_sample import StepSample, TransferSample
from atomesh.protocol.step_trace import StepTrace, TraceLimits
from atomesh.protocol.worker import LoadReport, RoleWeights, WorkerDescription

MAX_FRAME_BYTES = 64 * 2**20


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Worker → gateway, first, once both have proved that they know the secret: who I am."""

    worker: WorkerDescription


class Submit(msgspec.Struct, frozen=True, omit_defaults=True, tag="submit"):
    """Serve a request: all of it, or one leg of it."""

    request: GenerationRequest
    leg: Leg | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_id: str


class SetRole(msgspec.Struct, frozen=True, tag="set_role"):
    """Gateway → worker: what placement will offer you from now on; your chunk budget follows from it."""

    weights: RoleWeights


class RoleSet(msgspec.Struct, frozen=True, tag="role_set"):
    """Worker → every gateway, also the one that said so: this is my role now. The last word counts."""

    weights: RoleWeights


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Gateway → worker: say who owns every KV block. Answered by Inspected with the same `query_id`."""

    query_id: int


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """Block counts by state, sums to `total`; `owners` counts the held blocks of each owner."""

    query_id: int
    total: int
    states: dict[str, int]
    owners: dict[str, int]


class SetFault(msgspec.Struct, frozen=True, tag="set_fault"):
    """Gateway → worker, heeded only by one started with faults enabled: arm a fault point `count` times."""

    point: str
    count: int
    argument: float = 0.0


class StartProfile(msgspec.Struct, frozen=True, tag="start_profile"):
    """Gateway → worker: note what your steps do, from now on, within these limits."""

    limits: TraceLimits


class StopProfile(msgspec.Struct, frozen=True, tag="stop_profile"):
    """Gateway → worker: say what you have noted. Answered by Profile with the same `query_id`."""

    query_id: int


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, tag="profile"):
    """Without a trace when nothing had been asked to be noted."""

    query_id: int
    trace: StepTrace | None = None


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Gateway → worker: forget all cached prefixes that no running request holds."""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True, tag="heartbeat"):
    """Worker → gateway when no step frame has gone for a while: the engine thread lives, and its load.

    `kv_events` says how far the events have come, without any.
    """

    load: LoadReport
    kv_events: KVEvents | None = None


class StepFrame(msgspec.Struct, frozen=True, omit_defaults=True, tag="step"):
    """Worker → gateway: all that one engine step brought for this gateway's requests, maybe nothing.

    The rest is what every gateway hears: which prefixes the worker holds now, and what it measured.
    """

    deltas: list[TokenDelta]
    load: LoadReport
    kv_events: KVEvents | None = None
    sample: StepSample | None = None
    transfers: list[TransferSample] = []


GatewayMessage = (
    Submit
    | Abort
    | ResetPrefixCache
    | SetRole
    | Inspect
    | SetFault
    | RequestKVSnapshot
    | StartProfile
    | StopProfile
)
WorkerMessage = Hello | StepFrame | Heartbeat | Inspected | KVSnapshot | Profile | RoleSet
Message = GatewayMessage | WorkerMessage

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M")


def encode_message(message: Message) -> bytes:
    """A frame's body. Raises ChannelError when it is too long for one."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        kind = type(message).__name__
        raise ChannelError("size", f"a {kind} has {len(body)} bytes; the limit is {MAX_FRAME_BYTES}")
    return body


class MessageDecoder(Generic[M]):
    """A frame's body in, its message out."""

    def __init__(self, messages: Any) -> None:
        """`messages` is the union of what this side may hear: GatewayMessage or WorkerMessage."""
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages)

    def decode(self, body: bytes) -> M:
        """Raises ChannelError when it is malformed or of a wrong type."""
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, AtomeshError) as error:
            raise ChannelError("message", f"a frame is not a message of this plane: {error}") from error
        except RecursionError as error:
            raise ChannelError("message", "a frame is nested too deeply") from error
