"""A background response's events: written once, read by whoever comes, from wherever."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import Send

from atomesh.errors import AtomeshError
from atomesh.frontend.generation import StepPieces
from atomesh.frontend.http.sse import EventStream
from atomesh.frontend.openai.renderer import Renderer, WholeChoice
from atomesh.frontend.options import FrontendOptions

_END = b"\n\n"


class EventLog:
    """The event at place n has the sequence number n. `is_whole`: it ended with the answer."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.is_closed = False
        self.is_whole = False
        self._events: list[bytes] = []
        self._changed = asyncio.Event()

    def append(self, frames: bytes) -> None:
        self._events += [event + _END for event in frames.split(_END) if event]
        self.num_bytes += len(frames)
        self._tell()

    def close(self, *, is_whole: bool) -> None:
        self.is_closed, self.is_whole = True, is_whole
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, place: int) -> AsyncGenerator[bytes, None]:
        """The events from `place` on, together as far as they are there, until the log is closed."""
        while True:
            changed = self._changed
            if news := self._events[place:]:
                place += len(news)
                yield b"".join(news)
            elif self.is_closed:
                return
            else:
                await changed.wait()


class LoggedRenderer:
    """`inner`, whose frames all go to a log, whether or not a client hears them."""

    def __init__(self, inner: Renderer, log: EventLog) -> None:
        self._inner = inner
        self._log = log

    @property
    def ending(self) -> bytes:
        return self._inner.ending

    def frames(self, step: StepPieces) -> bytes:
        return self._logged(self._inner.frames(step))

    def last_frames(self, extra: Mapping[str, Any]) -> bytes:
        return self._logged(self._inner.last_frames(extra))

    def failure(self, error: AtomeshError) -> bytes:
        return self._logged(self._inner.failure(error))

    def whole(self, choices: Sequence[Sequence[WholeChoice]]) -> dict[str, Any]:
        return self._inner.whole(choices)

    def _logged(self, frames: bytes) -> bytes:
        self._log.append(frames)
        return frames


async def follow(log: EventLog, place: int, send: Send, options: FrontendOptions) -> None:
    """The log from `place` on as a response. One that did not end with the answer is cut."""
    events = EventStream(send, list)
    async with events.kept_alive(options.hold_s, options.keep_alive_s), aclosing(log.read(place)) as news:
        async for frames in news:
            await events.write(frames)
    if log.is_whole or not events.is_started:
        await events.finish(b"")
