"""A streamed answer's chunks into a leg's stream, to its end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from msgspec.structs import replace

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.http_client import StreamedAnswer
from atomesh.mesh.backends.sse_reader import DONE, SseReader, data_of
from atomesh.protocol.generation import KVSource, TokenDelta


class DeltaSink(Protocol):
    """A leg's stream, as whoever computes the leg sees it."""

    def push(self, deltas: list[TokenDelta]) -> bool:
        """False when nobody wants more of it."""
        ...


class Sink:
    """Implements DeltaSink over another; its first delta says where the leg's KV came from, if anywhere."""

    def __init__(self, stream: DeltaSink, kv_source: KVSource | None = None) -> None:
        self._stream = stream
        self._kv_source = kv_source

    def push(self, deltas: list[TokenDelta]) -> bool:
        """False when nobody wants more of it."""
        if not deltas:
            return True
        if self._kv_source is not None:
            deltas = [replace(deltas[0], kv_source=self._kv_source), *deltas[1:]]
            self._kv_source = None
        return self._stream.push(deltas)


async def until_done(
    answer: StreamedAnswer, read: Callable[[bytes], list[TokenDelta]], sink: Sink, heard: Callable[[], None]
) -> bool:
    """One push a chunk. False when the stream ended before its [DONE], or its reader is too far behind."""
    frames = SseReader()
    async for chunk in answer.chunks():
        deltas: list[TokenDelta] = []
        try:
            is_done = _read_frames(frames.feed(chunk), read, deltas)
        except AtomeshError:
            sink.push(deltas)
            raise
        heard()
        if not sink.push(deltas):
            return False
        if is_done:
            return True
    return False


def _read_frames(
    frames: list[bytes], read: Callable[[bytes], list[TokenDelta]], deltas: list[TokenDelta]
) -> bool:
    """Adds to `deltas`, also before an error is raised. Whether [DONE] was among them."""
    for data in map(data_of, frames):
        if data == DONE:
            return True
        if data:
            deltas += read(data)
    return False


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first failure ends the others, and is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
