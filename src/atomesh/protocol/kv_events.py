"""What a worker says of the prefixes that it holds, so that a gateway can send a prompt where it lies.

Each batch of events has a sequence number, one more than the batch before it within the worker's life. A
gateway that misses one asks for a snapshot, which is the state after the batch of its own number. A batch
without events repeats the last number and the digest. The digest is that of all blocks held after the batch:
it does not depend on their order, and tells a gateway that has counted along whether it is right.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from atomesh.protocol.block_hash import HASH_BYTES

Tier = Literal["device", "host"]
Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]

MAX_SNAPSHOT_HASHES = 8192  # in one part
_DIGEST_MASK = 2**64 - 1


class BlocksStored(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, tag="stored"):
    """A run of blocks can be found from now on. `parent` is the hash of the block before the first of them,
    empty for a prompt's first block."""

    parent: bytes
    hashes: list[Hash]
    tier: Tier = "device"


class BlocksRemoved(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, tag="removed"):
    hashes: list[Hash]
    tier: Tier = "device"


class CacheCleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """Nothing is held any more, in no tier."""


KVEvent = BlocksStored | BlocksRemoved | CacheCleared


class KVEvents(msgspec.Struct, frozen=True, array_like=True):
    """One batch, in the order in which it happened."""

    sequence: int
    digest: int
    events: list[KVEvent] = []


class RequestKVSnapshot(msgspec.Struct, frozen=True, tag="request_kv_snapshot"):
    """Gateway → worker: say all that you hold. Answered by KVSnapshot, in parts."""


class KVSnapshot(msgspec.Struct, frozen=True, tag="kv_snapshot"):
    """Worker → gateway: a part of what is held after batch `sequence`; `digest` is that of all parts."""

    sequence: int
    digest: int
    hashes: list[Hash]
    is_last: bool
    tier: Tier = "device"


def digest_part(block_hash: bytes, tier: Tier = "device") -> int:
    """What one block adds to the digest, which is a sum modulo 2^64."""
    return int.from_bytes(block_hash[:8] if tier == "device" else block_hash[8:16], "little")


def add_to_digest(digest: int, block_hashes: Iterable[bytes], tier: Tier = "device") -> int:
    for one in block_hashes:
        digest += digest_part(one, tier)
    return digest & _DIGEST_MASK


def take_from_digest(digest: int, block_hashes: Iterable[bytes], tier: Tier = "device") -> int:
    for one in block_hashes:
        digest -= digest_part(one, tier)
    return digest & _DIGEST_MASK
