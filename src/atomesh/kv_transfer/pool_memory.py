"""The bytes of a KV pool on this host, in a file without a name that peers may map, but only to read."""

import ctypes
import fcntl
import mmap
import os
import sys
from contextlib import suppress

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; no writable map is made after ours
SHAPE_SEALS = 0x2 | 0x4  # shrink and grow: whoever maps it is safe from SIGBUS


class PoolMemory:
    """`num_blocks` blocks of `block_bytes` bytes each, zero at first.

    `fd` is a sealed memfd for peers to map, or None where the system has none. The memory lives as long as
    someone holds `view` or a part of it.
    """

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        """Raises OSError when the system does not give so much."""
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.fd = _create_file(self.nbytes)
        mapping = mmap.mmap(-1 if self.fd is None else self.fd, self.nbytes)
        if self.fd is not None:
            _seal(self.fd)
        self._first = ctypes.c_char.from_buffer(mapping)
        self.view = memoryview(mapping)
        self.address = ctypes.addressof(self._first)

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def block(self, number: int) -> memoryview:
        """The block's bytes, writable. IndexError for a number outside the pool."""
        return self.view[self._start(number) :][: self.block_bytes]

    def block_address(self, number: int) -> int:
        return self.address + self._start(number)

    def close(self) -> None:
        """Give the file up; who has mapped it keeps his map."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def _start(self, number: int) -> int:
        if not 0 <= number < self.num_blocks:
            raise IndexError(f"block {number} is not in 0 … {self.num_blocks - 1}")
        return number * self.block_bytes


def can_share_memory() -> bool:
    """Whether this system gives pools that peers may map."""
    fd = _create_file(mmap.PAGESIZE)
    if fd is None:
        return False
    os.close(fd)
    return True


def _create_file(size: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        fd = os.memfd_create("atomesh-kv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:  # a sandbox may forbid it
        return None
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _seal(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SHAPE_SEALS)
    with suppress(OSError):  # older kernels leave it to the peer's good manners
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
