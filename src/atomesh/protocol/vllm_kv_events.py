"""vLLM's and SGLang's KV events as they travel over ZeroMQ: read in both encodings, written in the later one.

A message has three parts: topic, sequence number (8 bytes, big-endian), payload. The payload is msgpack: an
array [timestamp, events, data-parallel rank]. An event is a map with its kind under "type" (vLLM 0.32), or,
in earlier versions, an array with its kind first:

    BlockStored    block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name,
                   extra_keys, group_idx, kv_cache_spec_kind, its sliding window, locality, …
    BlockRemoved   block_hashes, medium, group_idx, locality, …
    AllBlocksCleared

What follows last may be left out, or be new; in a map, anything that is null and has a default. SGLang ends
after `medium` (earlier after `lora_id`), and names a salt under `cache_salt`. A hash is an int of 64 bits,
with a sign from SGLang, or the bytes of a digest.
Source: vLLM 0.32 `vllm/distributed/kv_events.py`; SGLang `sglang/srt/disaggregation/kv_events.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

MAX_HASH_BYTES = 64
MAX_BATCH_BYTES = 4 * 2**20
MAX_BATCH_EVENTS = 2**17
MAX_EVENT_BLOCKS = 2**17
MAX_EVENT_TOKENS = 2**20
MAX_BLOCK_TOKENS = 2**13
ForeignHash = int | Annotated[bytes, msgspec.Meta(max_length=MAX_HASH_BYTES)]
ForeignHashes = Annotated[list[ForeignHash], msgspec.Meta(max_length=MAX_EVENT_BLOCKS)]
ForeignTokens = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]], msgspec.Meta(max_length=MAX_EVENT_TOKENS)
]
Kind = Literal["BlockStored", "BlockRemoved", "AllBlocksCleared"]

SEQUENCE_BYTES = 8
END_OF_REPLAY = (2**64 - 1).to_bytes(SEQUENCE_BYTES, "big")
DEVICE_MEDIUM = "GPU"  # whatever the device is
HOST_MEDIA = frozenset({"CPU", "CPU_PINNED"})  # vLLM's word, and SGLang's
ELSEWHERE = "REMOTE"  # the locality of what others hold as much
_FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality"),
    "AllBlocksCleared": (),
}
# What vLLM has no default for is written even when it is null.
_REQUIRED = frozenset({"block_hashes", "parent_block_hash", "token_ids", "block_size"})
_REQUIRED |= {"lora_id", "medium", "lora_name"}
_encoder = msgspec.msgpack.Encoder()


class ForeignStored(msgspec.Struct, frozen=True):
    """A run of blocks behind `parent_block_hash`.

    `extra_keys` says of each block what else its identity depends on; None: the event does not say.
    `cache_salt` is SGLang's word for all of them. Of a model with several groups of layers, each has its own
    events under its `group_idx`. With block size 0 and no tokens it does not say what the blocks hold.
    """

    block_hashes: ForeignHashes
    token_ids: ForeignTokens
    block_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_TOKENS)]
    parent_block_hash: ForeignHash | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    cache_salt: str | None = None


class ForeignRemoved(msgspec.Struct, frozen=True):
    block_hashes: ForeignHashes
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class ForeignCleared(msgspec.Struct, frozen=True):
    pass


ForeignEvent = ForeignStored | ForeignRemoved | ForeignCleared
_STRUCTS: dict[str, type[ForeignEvent]] = {
    "BlockStored": ForeignStored,
    "BlockRemoved": ForeignRemoved,
    "AllBlocksCleared": ForeignCleared,
}


@dataclass(frozen=True, slots=True)
class ForeignBatch:
    """`timestamp` is in seconds on the publisher's wall clock; `unreadable` counts events left out."""

    timestamp: float
    events: tuple[ForeignEvent, ...]
    unreadable: int = 0


class ForeignFormatError(Exception):
    """The payload is not a batch of vLLM's KV events."""


class RawBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch whose events have not been read yet."""

    timestamp: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_BATCH_EVENTS)]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(RawBatch)
_event_decoder = msgspec.msgpack.Decoder()


def open_batch(payload: bytes) -> RawBatch:
    """Raises ForeignFormatError, also for more than MAX_BATCH_BYTES or MAX_BATCH_EVENTS."""
    if len(payload) > MAX_BATCH_BYTES:
        raise ForeignFormatError(f"a batch of {len(payload)} bytes; no more than {MAX_BATCH_BYTES} are read")
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ForeignFormatError(f"not a batch of KV events: {error}") from error


def read_events(raws: Iterable[msgspec.Raw]) -> tuple[list[ForeignEvent], int]:
    """Those that can be read, and the number of the others, which are too large or no events. Those of
    unknown kinds are left out."""
    events: list[ForeignEvent] = []
    unreadable = 0
    for raw in raws:
        try:
            event = _event(_event_decoder.decode(raw))
        except (ValueError, TypeError, RecursionError):
            unreadable += 1
            continue
        if event is not None:
            events.append(event)
    return events, unreadable


def decode_batch(payload: bytes) -> ForeignBatch:
    """All of it at once. Raises ForeignFormatError."""
    batch = open_batch(payload)
    events, unreadable = read_events(batch.events)
    return ForeignBatch(batch.timestamp, tuple(events), unreadable)


def encode_batch(timestamp: float, events: Sequence[ForeignEvent], rank: int = 0) -> bytes:
    return _encoder.encode([timestamp, [_as_map(event) for event in events], rank])


def _event(raw: Any) -> ForeignEvent | None:
    """Raises ValidationError."""
    if isinstance(raw, dict):
        kind, fields = raw.get("type"), raw
    elif isinstance(raw, list) and raw:
        kind = raw[0]
        names = _FIELDS.get(kind, ()) if isinstance(kind, str) else ()
        fields = dict(zip(names, raw[1:], strict=False))
    else:
        raise msgspec.ValidationError(f"an event is a {type(raw).__name__}")
    struct = _STRUCTS.get(kind) if isinstance(kind, str) else None
    return None if struct is None else msgspec.convert(fields, struct)


def _as_map(event: ForeignEvent) -> dict[str, Any]:
    kind = next(name for name, struct in _STRUCTS.items() if isinstance(event, struct))
    values = {name: getattr(event, name, None) for name in _FIELDS[kind]}
    said = {name: value for name, value in values.items() if value is not None or name in _REQUIRED}
    return {"type": kind, **said}
