"""The load of benchmarks/gateway.py: clients with one request in flight each, on connections kept open.

A process of its own, so that what it costs is not counted: `python gateway_load.py` reads one JSON `LoadPlan`
a line and answers each with a `LoadFound`.
"""

import asyncio
import re
import sys
from time import perf_counter
from typing import cast

import msgspec
import uvloop

DONE = b"data: [DONE]"
LAST_CHUNK = b"0\r\n\r\n"
LONGEST_END = 64  # from the last frame on
PATIENCE_S = 60.0
_SOME_TEXT = re.compile(rb'"content":"[^"]')


class LoadPlan(msgspec.Struct, frozen=True):
    """`clients` begin spread over `spread_s`, and send one request after another until `requests` are sent in
    all. The bodies are sent in turn, from number `first_body` on."""

    port: int
    bodies: list[str]
    requests: int
    clients: int
    spread_s: float = 0.0
    first_body: int = 0
    path: str = "/v1/chat/completions"


class LoadFound(msgspec.Struct, frozen=True):
    """Seconds. `ttfts` and `durations` are of requests that were answered well, in the order of their ends.

    `tokens` counts the pieces of text in streamed answers; `failed` has an example of each kind.
    """

    answered: int
    tokens: int
    wall_s: float
    ttfts: list[float]
    durations: list[float]
    failed: list[str] = []


class Client(asyncio.Protocol):
    """One connection: an answer at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[bytes] | None = None
        self._forget()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> bytes:
        """The answer as it came. Raises ConnectionError when it breaks off."""
        assert self._transport is not None
        self._forget()
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._asked

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._has_head and not self._read_head():
            return
        if self.first_text_at is None and self._is_stream and self._has_text():
            self.first_text_at = perf_counter()
        if self._is_whole() and self._asked is not None and not self._asked.done():
            self._asked.set_result(bytes(self._answer))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionResetError(f"broke off after {len(self._answer)} bytes"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _forget(self) -> None:
        self._answer = bytearray()
        self._has_head = False
        self._is_stream = False
        self._whole_size: int | None = None
        self.first_text_at: float | None = None

    def _read_head(self) -> bool:
        """False while it is not all there."""
        end = self._answer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._answer[: end + 2]).lower()
        self._has_head = True
        self._is_stream = b"text/event-stream" in head
        _, found, value = head.partition(b"\r\ncontent-length:")
        if found:
            self._whole_size = end + 4 + int(value.split(b"\r\n", 1)[0])
        return True

    def _has_text(self) -> bool:
        """A chunk with the role alone has an empty text."""
        return _SOME_TEXT.search(self._answer) is not None

    def _is_whole(self) -> bool:
        if self._whole_size is not None:
            return len(self._answer) >= self._whole_size
        if not self._answer.endswith(LAST_CHUNK):
            return False
        return not self._is_stream or DONE in self._answer[-LONGEST_END:]


class Load:
    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._numbers = iter(range(plan.requests))
        self._ttfts: list[float] = []
        self._durations: list[float] = []
        self._tokens = 0
        self._failed: dict[str, None] = {}
        self._requests = [request_bytes(plan.path, body.encode()) for body in plan.bodies]

    async def run(self) -> LoadFound:
        began = perf_counter()
        gap = self._plan.spread_s / self._plan.clients
        await asyncio.gather(*(self._client(place * gap) for place in range(self._plan.clients)))
        return LoadFound(
            answered=len(self._durations),
            tokens=self._tokens,
            wall_s=perf_counter() - began,
            ttfts=self._ttfts,
            durations=self._durations,
            failed=list(self._failed),
        )

    async def _client(self, delay: float) -> None:
        if delay:
            await asyncio.sleep(delay)
        client: Client | None = None
        for number in self._numbers:
            try:
                if client is None or not client.is_open:
                    _, client = await self._loop.create_connection(Client, "127.0.0.1", self._plan.port)
                async with asyncio.timeout(PATIENCE_S):
                    await self._ask(client, number)
            except (OSError, TimeoutError) as error:
                self._failed.setdefault(f"{type(error).__name__}: {error}")
                client = None
        if client is not None:
            client.close()

    async def _ask(self, client: Client, number: int) -> None:
        request = self._requests[(self._plan.first_body + number) % len(self._requests)]
        began = perf_counter()
        answer = await client.ask(request)
        ended = perf_counter()
        if not answer.startswith(b"HTTP/1.1 200"):
            self._failed.setdefault(answer[:300].decode("utf-8", "replace"))
            return
        self._durations.append(ended - began)
        if client.first_text_at is not None:
            self._ttfts.append(client.first_text_at - began)
            self._tokens += len(_SOME_TEXT.findall(answer))


def request_bytes(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def answer_plans() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        found = await Load(msgspec.json.decode(line, type=LoadPlan)).run()
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(answer_plans())
