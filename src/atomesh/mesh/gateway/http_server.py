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
    def __init__(self, app: ASGIApp, tls: ssl.SSLContext | None = None) -> None:
        """With `tls`, only HTTPS."""
        logging.getLogger("uvicorn.error").addFilter(is_worth_saying)
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._tls = tls

    def stop(self, within_s: float) -> None:
        """Take no new connections, cut off what is still running after `within_s`, let `run_on` return."""
        self.config.timeout_graceful_shutdown = int(within_s)
        self.should_exit = True

    async def run_on(self, listener: socket.socket) -> None:
        self.config.load()
        self.config.ssl = self._tls
        await self.serve(sockets=[listener])

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
