"""The way out: running answers finish, and whoever comes meanwhile hears 503 rather than nothing."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.context import COUNTED
from atomesh.frontend.http.error_answers import error_response

STILL_ANSWERED = ("/live", "/version", "/metrics", "/workers", "/debug/kv")
BODY_S = 1.0
CLOSING = (b"connection", b"close")
SHUTTING_DOWN = "the server is shutting down; try again later"


class RunningAnswers:
    """Counts requests that are being answered; once closed, those alone that came before."""

    def __init__(self) -> None:
        self.num = 0
        self.is_closed = False
        self._is_over = asyncio.Event()

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.num += 1
        try:
            yield
        finally:
            self.num -= 1
            self._look()

    def close(self) -> None:
        self.is_closed = True
        self._look()

    async def until_over(self) -> None:
        """Returns when it is closed and nothing is counted any more."""
        await self._is_over.wait()

    def _look(self) -> None:
        if self.is_closed and not self.num:
            self._is_over.set()


class DrainLayer:
    """ASGI layer: once `answers` is closed, 503 for all but `open_paths`, and no connection is kept."""

    def __init__(
        self, app: ASGIApp, answers: RunningAnswers, open_paths: Collection[str] = STILL_ANSWERED
    ) -> None:
        self._app = app
        self._answers = answers
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif not self._answers.is_closed:
            scope[COUNTED] = self._answers.counted
            with self._answers.counted():
                await self._app(scope, receive, self._closing(send))
        elif scope["path"] in self._open_paths:
            await self._app(scope, receive, self._closing(send))
        else:
            await _read_all(receive)
            refusal = error_response(ServiceUnavailableError(SHUTTING_DOWN))
            await refusal(scope, receive, self._closing(send))

    def _closing(self, send: Send) -> Send:
        async def send_closing(message: Message) -> None:
            if self._answers.is_closed and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), CLOSING]
            await send(message)

        return send_closing


async def _read_all(receive: Receive) -> None:
    """To close on bytes that nobody has read would reset the connection, and the answer would be lost."""
    with suppress(TimeoutError):
        async with asyncio.timeout(BODY_S):
            while (await receive()).get("more_body", False):
                pass
