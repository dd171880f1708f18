"""Where the bytes of one pushed payload go, and what they add up to."""

from collections.abc import Sequence

import xxhash

SCRATCH_BYTES = 2**20


class Landing:
    """Takes a payload block by block; once diverted, the rest goes to scratch memory. `left` is in bytes."""

    def __init__(self, size: int, targets: Sequence[memoryview]) -> None:
        """`size` in bytes, which `targets` hold together; without targets all of it is scratch."""
        self.digests: list[int] = []
        self.is_diverted = not targets
        self.left = size
        self._targets = targets
        self._scratch = memoryview(bytearray(min(size, SCRATCH_BYTES))) if self.is_diverted else None
        self._filled = 0
        self._hash = xxhash.xxh3_64()

    @property
    def is_complete(self) -> bool:
        return self.left == 0

    @property
    def space(self) -> memoryview:
        """Where the next bytes are to be written; never empty before it is complete."""
        if self._scratch is not None:
            return self._scratch[: self.left]
        return self._targets[len(self.digests)][self._filled :]

    def took(self, count: int) -> None:
        """The first `count` bytes of `space` have been written."""
        if self._scratch is None:
            self._add(count)
        self.left -= count

    def divert(self) -> None:
        self.is_diverted = True
        self._scratch = memoryview(bytearray(min(self.left, SCRATCH_BYTES)))

    def _add(self, count: int) -> None:
        self._hash.update(self.space[:count])
        self._filled += count
        if self._filled == len(self._targets[len(self.digests)]):
            self.digests.append(self._hash.intdigest())
            self._hash.reset()
            self._filled = 0
