"""The random numbers behind each sampled token, from a counter instead of a state."""

import hashlib
import struct

import numpy as np
import numpy.typing as npt

_COUNTER = struct.Struct("<qQQ")


def exponentials(seed: int, choice: int, index: int, count: int) -> npt.NDArray[np.float64]:
    """`count` waiting times of mean 1, never 0, for output token `index` of `choice` under `seed` (int64).

    They depend on these three alone, not on a device or a batch: each is −ln of 52 bits of SHAKE-256
    (FIPS 202), taken as a number strictly between 0 and 1.
    """
    key = b"atomesh sampling\0" + _COUNTER.pack(seed, choice, index)
    bits = np.frombuffer(hashlib.shake_256(key).digest(8 * count), dtype="<u8") >> np.uint64(12)
    return -np.log((bits.astype(np.float64) + 0.5) * 2.0**-52)
