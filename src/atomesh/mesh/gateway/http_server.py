"""uvicorn without its own ideas about signals and exits: the gateway says when it is over."""

import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from atomesh.frontend.http.http_protocol import HttpProtocol

BACKLOG = 1024
KEEP_ALIVE_S = 75
CUT_ON_PURPOSE = "ASGI callable returned without completing response."


def is_worth_saying(record: logging.LogRecord) -> bool:
    """uvicorn reports as an error each stream that was cut so that its client sees it fail."""
    return record.getMessage() != CUT_ON_PURPOSE


class HttpServer(uvicorn.Server):
    def __init__(self, app: ASGIApp, shutdown_s: float, tls: ssl.SSLContext | None = None) -> None:
        """`shutdown_s`: answers still running so long after `stop` are cut off. With `tls`, only HTTPS."""
        logging.getLogger("uvicorn.error").addFilter(is_worth_saying)
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
        self._tls = tls

    def stop(self, within_s: float | None = None) -> None:
        """Take no new connections, finish the open ones, and let `run_on` return.

        `within_s`: no longer than this, whatever was said at the start.
        """
        if within_s is not None:
            self.config.timeout_graceful_shutdown = int(within_s)
        self.should_exit = True

    @property
    def num_running(self) -> int:
        """Requests that are being answered."""
        return len(self.server_state.tasks)

    async def run_on(self, listener: socket.socket) -> None:
        self.config.load()
        self.config.ssl = self._tls
        await self.serve(sockets=[listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
