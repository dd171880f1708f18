"""A gateway in this process between puppets: each word and each moment chosen, nothing left in the end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from atomesh.clock import Clock, MonotonicClock
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.puppet_worker import PuppetWorker, serving

SECRET = b"s" * 32
ADMIN_TOKEN = "the-admin-token"  # noqa: S105  of a gateway that lives as long as a test
PATIENCE_S = 10.0
SETTLE_S = 2.0
BODY = {
    "model": "scripted",
    "prompt": [1, 2, 3],
    "max_tokens": 4,
    "return_token_ids": True,
    "ignore_eos": True,
}
GAUGES = ("atomesh_requests_in_flight", "atomesh_tickets_open")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def tokens(self) -> list[int]:
        tokens: list[int] = self.body["choices"][0]["token_ids"]
        return tokens

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"])


@dataclass
class PuppetMesh:
    """`complaints` are what the event loop was told of tasks and callbacks that died."""

    gateway: Gateway
    http: aiohttp.ClientSession
    puppets: dict[str, PuppetWorker]
    complaints: list[str] = field(default_factory=list)

    async def complete(self, timeout_s: float | None = None, **fields: object) -> Reply:
        headers = {} if timeout_s is None else {"x-request-timeout": str(timeout_s)}
        async with self.http.post("/v1/completions", json={**BODY, **fields}, headers=headers) as response:
            named = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, named, json.loads(await response.text()))

    def asking(self, **fields: Any) -> "asyncio.Task[Reply]":
        return asyncio.create_task(self.complete(**fields))

    @asynccontextmanager
    async def streaming(self, **fields: object) -> "AsyncIterator[AsyncIterator[dict[str, Any]]]":
        """The frames of a streamed answer, the last of them [DONE] as an empty one; left after the block.

        Asked for at once, waited for with the first frame: no head comes before a token, but after seconds.
        """
        body = {**BODY, "stream": True, **fields}
        asked = asyncio.ensure_future(self.http.post("/v1/completions", json=body))
        try:
            yield _frames(asked)
        finally:
            if asked.cancel():
                await asyncio.wait((asked,))
            else:
                asked.result().close()

    async def admin(self, path: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with self.http.get(path, headers=headers) as response:
            body: dict[str, Any] = json.loads(await response.text())
            return body

    async def metric(self, name: str) -> float:
        async with self.http.get("/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    async def until_text_is_there(self) -> None:
        """The first hello's model has its text side; whether workers can serve it is another matter."""
        async with asyncio.timeout(PATIENCE_S):
            while "no model is ready" in json.dumps(await self.admin("/v1/models")):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def worker(self, puppet: PuppetWorker) -> WorkerSnapshot:
        """What the gateway thinks of it."""
        [found] = [
            worker
            for worker in self.gateway.registry.snapshot().workers
            if worker.description is not None and worker.description.worker_id == puppet.description.worker_id
        ]
        return found

    async def check(self, *, is_served: bool) -> None:
        """After every test: nothing is in flight, nobody waits, no task has died, and a plain request works.

        `is_served`: these workers can serve one; they are woken for it.
        """
        left = await self._left()
        if is_served and (status := (await self._plain_request()).status) != 200:
            left.append(f"a plain request is answered with {status}")
        left += await self._left() + self.complaints
        if left:
            raise AssertionError(f"after the test: {left}")

    async def _left(self) -> list[str]:
        """What is in flight, and does not go by itself in a moment."""
        try:
            await until(lambda: not self._busy(), SETTLE_S)
        except TimeoutError:
            return self._busy()
        gauges = {name: await self.metric(name) for name in GAUGES}
        return [f"{name} is {value:g}" for name, value in gauges.items() if value]

    def _busy(self) -> list[str]:
        registry = self.gateway.registry
        busy = [f"{one.address}: {one.in_flight}" for one in registry.snapshot().workers if one.in_flight]
        return busy + ([f"{registry.num_heeding} wait"] if registry.num_heeding else [])

    async def _plain_request(self) -> Reply:
        """Whichever worker it goes to answers."""
        for puppet in self.puppets.values():
            puppet.is_silent = False
        await until(lambda: all(w.state == "ready" for w in self.gateway.registry.snapshot().workers))
        before = {name: len(puppet.submits) for name, puppet in self.puppets.items()}
        asked = self.asking(max_tokens=1)
        await until(
            lambda: asked.done() or any(len(one.submits) > before[name] for name, one in self.puppets.items())
        )
        for name, puppet in self.puppets.items():
            for submit in puppet.submits[before[name] :]:
                puppet.say(submit, 9, finish="length")
        return await asked


class _Template(PlainChatTemplate):
    def close(self) -> None:
        """There is no process to end."""


def make_gateway(addresses: tuple[str, ...], clock: Clock | None = None, **options: Any) -> Gateway:
    chosen = GatewayOptions(workers=addresses, secret=SECRET, admin_token=ADMIN_TOKEN, drain_s=1.0, **options)
    tokenizer: Any = ByteTokenizer()
    template: Any = _Template()
    return Gateway(chosen, lambda _model: TextSide(tokenizer, template), clock or MonotonicClock())


@asynccontextmanager
async def puppet_mesh(
    tmp_path: Path, *puppets: PuppetWorker, is_served: bool = True, **options: Any
) -> AsyncIterator[PuppetMesh]:
    """A gateway that has heard the hello of every puppet, by whose ids they are known; checked in the end.

    `options` are make_gateway's.
    """
    by_address = {f"unix:{tmp_path}/{puppet.description.worker_id}": puppet for puppet in puppets}
    gateway = make_gateway(tuple(by_address), **options)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: complaints.append(str(context)))
    async with AsyncExitStack() as stack:
        stack.callback(loop.set_exception_handler, None)
        for address, puppet in by_address.items():
            await stack.enter_async_context(serving(puppet, address))
        task = asyncio.create_task(gateway.run(listener))
        stack.push_async_callback(_stop, gateway, task)
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        by_name = {puppet.description.worker_id: puppet for puppet in puppets}
        made = PuppetMesh(gateway, http, by_name, complaints)
        await until(lambda: all(w.state == "ready" for w in gateway.registry.snapshot().workers))
        await made.until_text_is_there()
        yield made
        await made.check(is_served=is_served)
        if task.done():
            raise AssertionError("the gateway has ended")


async def _stop(gateway: Gateway, task: "asyncio.Task[None]") -> None:
    gateway.stop()
    gateway.stop()
    await asyncio.wait((task,))


async def _frames(asked: "asyncio.Future[aiohttp.ClientResponse]") -> AsyncIterator[dict[str, Any]]:
    async for line in (await asyncio.shield(asked)).content:
        if line.startswith(b"data: "):
            text = line.removeprefix(b"data: ").strip()
            yield {} if text == b"[DONE]" else json.loads(text)


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  as an operator would look
            await asyncio.sleep(0.005)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())
