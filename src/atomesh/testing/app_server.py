"""An ASGI application behind real HTTP on loopback, for as long as a test needs it."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

from atomesh.frontend.http.http_protocol import HttpProtocol

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AppServer:
    """`loop` is the server's; things that live on it are touched by `run` alone."""

    host: str
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 10.0) -> T:
        """`work`'s result, from the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)


@contextmanager
def serve_app(app: ASGIApp) -> Iterator[AppServer]:
    """Serves from a thread with an event loop of its own, on a free port, until the end of the block."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    host, port = listener.getsockname()
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    loop = config.get_loop_factory()
    runner = asyncio.Runner(loop_factory=loop)
    started = threading.Event()

    def serve() -> None:
        with runner:
            runner.get_loop().call_soon(started.set)
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=serve, name="atomesh-test-server", daemon=True)
    thread.start()
    started.wait(10.0)
    try:
        yield AppServer(host, port, runner.get_loop())
    finally:
        server.should_exit = True
        thread.join(10.0)
        listener.close()
