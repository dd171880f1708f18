"""A server of text whose answers are bytes of the test's own choice, be they HTTP or not.

GETs list `models`, or stand still while it `is_frozen`; each POST is answered by `post`, which writes what it
likes, and whose connection is then closed if it returns True.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

Post = Callable[[asyncio.StreamWriter], Awaitable[bool | None]]

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """As HTTP/1.1 sends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def response(
    body: bytes, *, status: int = 200, headers: bytes = b"content-type: application/json\r\n"
) -> bytes:
    return b"HTTP/1.1 %d X\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def saying(data: bytes, *, then_closes: bool = False) -> Post:
    async def post(writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return then_closes

    return post


class RawTextServer:
    """An async context manager; `num_posts` counts what it was asked."""

    def __init__(self, post: Post, models: Sequence[str] = ("fake-model",)) -> None:
        self.models = models
        self.num_posts = 0
        self.is_frozen = False
        self.url = ""
        self._post = post
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "RawTextServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while not await self._answer(await _read_request(reader), writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, method: bytes, writer: asyncio.StreamWriter) -> bool:
        if method == b"POST":
            self.num_posts += 1
            return bool(await self._post(writer))
        if self.is_frozen:
            await asyncio.Event().wait()
        listed = {"object": "list", "data": [{"id": name} for name in self.models]}
        writer.write(response(json.dumps(listed).encode()))
        return False


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")
    ]
    await reader.readexactly(int(lengths[0]) if lengths else 0)
    return head.partition(b" ")[0]
