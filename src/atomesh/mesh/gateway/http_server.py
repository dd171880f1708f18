"""uvicorn without its own ideas about signals and exits: the gateway says when it is over."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from atomesh.frontend.http.http_protocol import HttpProtocol

BACKLOG = 1024
KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, shutdown_s: float) -> None:
        """`shutdown_s`: answers still running so long after `stop` are cut off."""
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(shutdown_s) + 1,
            )
        )

    def stop(self) -> None:
        """Take no new connections, finish the open ones, and let `run_on` return."""
        self.should_exit = True

    async def run_on(self, listener: socket.socket) -> None:
        await self.serve(sockets=[listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
