"""Server-sent events over ASGI: held-back headers, one write a step, comments when idle, a cut on failure."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Send

from atomesh.errors import AtomeshError
from atomesh.frontend.http.direct_body import NO_DIRECT_BODY, DirectBody
from atomesh.frontend.http.json_text import encode_json

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HeaderList = Sequence[tuple[bytes, bytes]]

_HEADERS: HeaderList = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def data_frame(value: object) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


class EventStream:
    """A response whose 200 goes with the first frame, or with the first comment when that takes too long."""

    def __init__(
        self, send: Send, late_headers: Callable[[], HeaderList], direct: DirectBody = NO_DIRECT_BODY
    ) -> None:
        """`late_headers` is asked at the moment the headers go, for what is known by then.

        `direct` may take the frames that come after the first.
        """
        self._send = send
        self._late_headers = late_headers
        self._direct = direct
        self._writes = 0
        self._has_frames = False
        self._turn = asyncio.Lock()

    @property
    def is_started(self) -> bool:
        return self._writes > 0

    @property
    def is_free(self) -> bool:
        """Whether `write_now` may be used."""
        return self._has_frames and not self._turn.locked() and self._direct.is_free

    def write_now(self, frames: bytes) -> None:
        """Without waiting for anything, while the stream is free."""
        self._direct.write(frames)
        self._writes += 1

    async def write(self, frames: bytes) -> None:
        """At once while the stream is free; else this waits for a client that is slow."""
        if self.is_free:
            self.write_now(frames)
            return
        await self._write(frames)
        self._has_frames = True

    async def _write(self, frames: bytes) -> None:
        async with self._turn:
            await self._start()
            await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def finish(self, frames: bytes) -> None:
        """The last frames, and the end of the response."""
        await self._start()
        await self._send({"type": "http.response.body", "body": frames})

    async def fail(self, error: AtomeshError, frames: bytes) -> None:
        """After the 200 the error's frames; the response stays incomplete, so that the server cuts it off.

        Before the 200 the error is raised, to become a status.
        """
        if not self.is_started:
            raise error
        await self.write(frames)

    async def _start(self) -> None:
        self._writes += 1
        if self._writes == 1:
            headers = [*_HEADERS, *self._late_headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    @asynccontextmanager
    async def kept_alive(self, hold_s: float, interval_s: float) -> AsyncIterator[None]:
        """Inside, a comment goes after `hold_s` without a frame, then after each `interval_s` without one."""
        comments = asyncio.ensure_future(self._comment_when_idle(hold_s, interval_s))
        try:
            yield
        finally:
            comments.cancel()
            await asyncio.wait({comments})

    async def _comment_when_idle(self, hold_s: float, interval_s: float) -> None:
        await asyncio.sleep(hold_s)
        seen = 0
        while True:
            if self._writes == seen:
                await self._write(KEEP_ALIVE)
            seen = self._writes
            await asyncio.sleep(interval_s)
