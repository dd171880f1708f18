"""A KV transport and its pool, for tests that wait for what it has to say."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from atomesh.kv_transfer.identity import KVIdentity
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import KVTransport, TransportEvent
from atomesh.protocol.kv_layout import KVLayout

E = TypeVar("E", bound=TransportEvent)
Make = Callable[[PoolMemory, Callable[[], None]], KVTransport]


def kv_identity(
    incarnation: str, *, block_bytes: int, secret: bytes = b"s" * 32, dtype: str = "float32"
) -> KVIdentity:
    layout = KVLayout(
        name="block-major",
        model="tiny",
        weights="w0",
        dtype=dtype,
        block_size=16,
        num_layers=2,
        num_kv_heads=1,
        head_dim=8,
        block_bytes=block_bytes,
    )
    return KVIdentity(secret, incarnation, layout)


class TransportProbe:
    """Block i of `pool` holds the byte `mark` + i all over at first, modulo 256."""

    def __init__(self, pool: PoolMemory, make: Make, mark: int = 0) -> None:
        self.pool = pool
        self._news = threading.Event()
        self._unread: list[TransportEvent] = []
        for number in range(pool.num_blocks):
            self.fill(number, mark + number)
        self.transport = make(pool, self._news.set)

    @property
    def address(self) -> str:
        return self.transport.address

    def fill(self, block: int, value: int) -> None:
        self.pool.block(block)[:] = bytes([value % 256]) * self.pool.block_bytes

    def values(self) -> list[int | None]:
        """The byte that each block holds all over, None for one that is mixed."""
        return [_uniform(self.pool.block(number)) for number in range(self.pool.num_blocks)]

    def wait(self, *kinds: type[E], timeout_s: float = 10.0) -> E:
        """The first event of one of `kinds` that no `wait` has given out yet.

        AssertionError when none comes.
        """
        end = monotonic() + timeout_s
        while True:
            self._news.clear()
            self._unread += self.transport.poll()
            for event in self._unread:
                if isinstance(event, kinds):
                    self._unread.remove(event)
                    return event
            left = end - monotonic()
            if left <= 0 or not self._news.wait(left):
                raise AssertionError(f"no {kinds} within {timeout_s} s, but {self._unread}")

    def unread(self) -> list[TransportEvent]:
        """Whatever has come and was not waited for."""
        self._unread += self.transport.poll()
        return list(self._unread)

    def take_unread(self) -> list[TransportEvent]:
        """The same, and from now on it counts as read."""
        taken = self.unread()
        self._unread.clear()
        return taken

    def close(self) -> None:
        self.transport.close()
        self.pool.close()


def _uniform(block: memoryview) -> int | None:
    return block[0] if bytes(block) == bytes(block[:1]) * len(block) else None
