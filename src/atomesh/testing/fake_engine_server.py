"""What the doubles of foreign engines have in common: a server on loopback that says what a script gives it.

A script is a list of tokens. Each is said in a chunk of its own, but a `HOLD` stands still until `release()`,
and a `CUT` aborts the connection. The last token ends the answer with the script's finish.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from aiohttp import web

from atomesh.protocol.generation import FinishReason

PATIENCE_S = 10.0


class Step(Enum):
    HOLD = "hold"
    CUT = "cut"


HOLD, CUT = Step.HOLD, Step.CUT


@dataclass(frozen=True, slots=True)
class Speech:
    """`status` other than 200 refuses the request with `message`; `stop_token` is what the engine stopped at.

    `error_after`: instead of a finish, an error frame. `cached` prompt tokens are said to have been cached.
    """

    tokens: Sequence[int | Step] = ()
    finish: FinishReason = "length"
    stop_token: int | None = None
    status: int = 200
    message: str = "refused"
    error_after: bool = False
    cached: int = 0


class FakeEngineServer(ABC):
    """An async context manager. `bodies` are the POSTs', in order; `left` counts clients that went away."""

    def __init__(self, model: str, max_model_len: int = 512) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self.speech: Callable[[dict[str, Any]], Speech] = lambda _: Speech([1, 2, 3])
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = 0
        self.is_healthy = True
        self.running = 0
        self.waiting = 0
        self.url = ""
        self._port = 0
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @abstractmethod
    def routes(self) -> list[web.RouteDef]: ...

    def release(self) -> None:
        """Lets every answer that stands still, now or later, go on."""
        self._released.set()

    def hold_again(self) -> None:
        self._released = asyncio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  the test waits for what it cannot be told of
                await asyncio.sleep(0.002)

    async def start(self) -> None:
        """At the same port as before, if it has been started before."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Connections are cut, and nobody listens any more."""
        if self._runner is None:
            return
        server = self._runner.server
        for connection in () if server is None else tuple(server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        self._runner = None

    async def __aenter__(self) -> "FakeEngineServer":
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.release()
        await self.stop()

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def models(self, _request: web.Request) -> web.Response:
        model = {"id": self.model, "object": "model", "root": self.model, "max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [model]})

    async def hear(self, request: web.Request) -> tuple[dict[str, Any], Speech]:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        return body, self.speech(body)

    async def steps(self, speech: Speech, request: web.Request) -> AsyncIterator[int]:
        """The tokens, each when it is due. Raises ConnectionResetError at a CUT."""
        for step in speech.tokens:
            if isinstance(step, int):
                yield step
            elif step is HOLD:
                await self._released.wait()
            else:
                if request.transport is not None:
                    request.transport.abort()
                raise ConnectionResetError
