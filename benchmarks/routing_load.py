"""The load of benchmarks/routing.py: each request at its moment, whatever has become of those before it.

`python routing_load.py` reads one JSON `ArrivalPlan` a line and answers each with a `LoadFound`.
"""

import asyncio
import sys
from time import perf_counter

import msgspec
import uvloop
from gateway_load import Client, LoadFound, request_bytes

PATIENCE_S = 60.0


class ArrivalPlan(msgspec.Struct, frozen=True):
    """`at_s` counts from the start of the run, one for each body."""

    port: int
    at_s: list[float]
    bodies: list[str]
    path: str = "/v1/chat/completions"


class OpenLoad:
    def __init__(self, plan: ArrivalPlan) -> None:
        self._plan = plan
        self._idle: list[Client] = []
        self._ttfts: list[float] = []
        self._failed: dict[str, None] = {}

    async def run(self) -> LoadFound:
        began = perf_counter()
        pairs = zip(self._plan.at_s, self._plan.bodies, strict=True)
        await asyncio.gather(*(self._send(began + at_s, body) for at_s, body in pairs))
        for client in self._idle:
            client.close()
        return LoadFound(
            answered=len(self._ttfts),
            tokens=len(self._ttfts),
            wall_s=perf_counter() - began,
            ttfts=self._ttfts,
            durations=[],
            failed=list(self._failed),
        )

    async def _send(self, moment: float, body: str) -> None:
        await asyncio.sleep(moment - perf_counter())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._ask(request_bytes(self._plan.path, body.encode()))
        except (OSError, TimeoutError) as error:
            self._failed.setdefault(f"{type(error).__name__}: {error}")

    async def _ask(self, request: bytes) -> None:
        client = await self._client()
        began = perf_counter()
        answer = await client.ask(request)
        if not answer.startswith(b"HTTP/1.1 200") or client.first_text_at is None:
            self._failed.setdefault(answer[:300].decode("utf-8", "replace"))
        else:
            self._ttfts.append(client.first_text_at - began)
        self._idle.append(client)

    async def _client(self) -> Client:
        while self._idle:
            client = self._idle.pop()
            if client.is_open:
                return client
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(Client, "127.0.0.1", self._plan.port)
        return client


async def answer_plans() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        found = await OpenLoad(msgspec.json.decode(line, type=ArrivalPlan)).run()
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(answer_plans())
