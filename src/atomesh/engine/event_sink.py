"""Who else is told what comes into the prefix cache and goes; a null object when nobody is."""

from collections.abc import Callable, Iterable
from typing import Protocol

from atomesh.protocol.kv_events import KVEvents


class EventSink(Protocol):
    """Called by the engine's thread alone, after each step; neither call waits."""

    def publish(self, batch: KVEvents, held: Callable[[], Iterable[bytes]]) -> None:
        """A batch, maybe without events. `held` gives the hashes of all that is held after it."""
        ...

    def close(self) -> None: ...


class NoSink:
    def publish(self, batch: KVEvents, held: Callable[[], Iterable[bytes]]) -> None:
        return

    def close(self) -> None:
        return
