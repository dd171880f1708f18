"""The layer around everything: whoever observes requests hears of each, with what came of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.clock import Clock
from atomesh.observability.request_record import RequestRecord, record_of

_COMMENT = b":"


class RequestObserver(Protocol):
    def around(self, record: RequestRecord, scope: Scope) -> AbstractContextManager[None]:
        """The request runs inside. When it is over, `record` says what came of it."""
        ...


class ObservedRequests:
    def __init__(self, app: ASGIApp, clock: Clock, observers: Sequence[RequestObserver]) -> None:
        self._app = app
        self._clock = clock
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record, began = record_of(scope), self._clock.now()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *record.headers]
            elif record.first_byte_s is None and not message.get("body", b"").startswith(_COMMENT):
                record.first_byte_s = self._clock.now() - began
            await send(message)

        with ExitStack() as around:
            for observer in self._observers:
                around.enter_context(observer.around(record, scope))
            try:
                await self._app(scope, receive, watched)
            finally:
                record.duration_s = self._clock.now() - began
