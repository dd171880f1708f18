"""The random number behind each sampled token, from a counter instead of a state."""

import hashlib
import struct

_COUNTER = struct.Struct("<qQQ")
_KEY = hashlib.blake2b(b"atomesh sampling", digest_size=32).digest()


def uniform(seed: int, choice: int, index: int) -> float:
    """A number in [0, 1) of 53 random bits, for output token `index` of choice `choice` under `seed` (int64).

    It depends on these three alone, not on a device or a batch: 64 bits of keyed BLAKE2b (RFC 7693),
    the low eleven dropped.
    """
    digest = hashlib.blake2b(_COUNTER.pack(seed, choice, index), digest_size=8, key=_KEY).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53
