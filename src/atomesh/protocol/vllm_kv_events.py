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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

ForeignHash = int | bytes
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

    block_hashes: list[ForeignHash]
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]
    block_size: Annotated[int, msgspec.Meta(ge=0)]
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
    block_hashes: list[ForeignHash]
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


class _Batch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[Any]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(_Batch)


def decode_batch(payload: bytes) -> ForeignBatch:
    """Events of unknown kinds are left out, and those that are none. Raises ForeignFormatError."""
    try:
        batch = _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ForeignFormatError(f"not a batch of KV events: {error}") from error
    events: list[ForeignEvent] = []
    unreadable = 0
    for raw in batch.events:
        try:
            event = _event(raw)
        except msgspec.ValidationError:
            unreadable += 1
            continue
        if event is not None:
            events.append(event)
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
