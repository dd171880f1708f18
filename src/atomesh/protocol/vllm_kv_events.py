"""vLLM's KV events as they travel over ZeroMQ: read in both of its encodings, written in the older one.

A message has three parts: topic, sequence number (8 bytes, big-endian), payload. The payload is msgpack: an
array [timestamp, events, data-parallel rank]. An event is an array, its kind first, or, in later versions, a
map with the kind under "type":

    BlockStored    block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name,
                   extra_keys, group_idx, …
    BlockRemoved   block_hashes, medium, group_idx, …
    AllBlocksCleared

What follows last may be left out, or be new. A hash is an unsigned 64-bit int, or the bytes of a digest.
Source: vllm/distributed/kv_events.py.
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
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_encoder = msgspec.msgpack.Encoder()


class ForeignStored(msgspec.Struct, frozen=True):
    """A run of blocks behind `parent_block_hash`.

    `extra_keys` says of each block what else its identity depends on; None: the event does not say.
    """

    block_hashes: list[ForeignHash]
    token_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    parent_block_hash: ForeignHash | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None


class ForeignRemoved(msgspec.Struct, frozen=True):
    block_hashes: list[ForeignHash]
    medium: str | None = None
    group_idx: int | None = None


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
    """`timestamp` is in seconds on the publisher's wall clock."""

    timestamp: float
    events: tuple[ForeignEvent, ...]


class ForeignFormatError(Exception):
    """The payload is not a batch of vLLM's KV events."""


class _Batch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[Any]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(_Batch)


def decode_batch(payload: bytes) -> ForeignBatch:
    """Events of unknown kinds are left out. Raises ForeignFormatError."""
    try:
        batch = _decoder.decode(payload)
        events = tuple(event for one in batch.events if (event := _event(one)) is not None)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ForeignFormatError(f"not a batch of KV events: {error}") from error
    return ForeignBatch(batch.timestamp, events)


def encode_batch(timestamp: float, events: Sequence[ForeignEvent], rank: int = 0) -> bytes:
    return _encoder.encode([timestamp, [_as_array(event) for event in events], rank])


def _event(raw: Any) -> ForeignEvent | None:
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


def _as_array(event: ForeignEvent) -> list[Any]:
    kind = next(name for name, struct in _STRUCTS.items() if isinstance(event, struct))
    values = [getattr(event, name) for name in _FIELDS[kind]]
    while values and values[-1] is None:
        values.pop()
    return [kind, *values]
