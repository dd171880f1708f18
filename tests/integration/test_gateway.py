"""The whole gateway in this process, over real HTTP and a scripted worker: keys, starting, stopping."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atomesh.clock import MonotonicClock
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.puppet_worker import PuppetWorker, serving
from atomesh.testing.scripted_worker import PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
ADMIN = {"authorization": "Bearer the-admin-token"}
PROMPT = {"model": "scripted", "prompt": [1, 2, 3], "max_tokens": 4}
STREAM = {**PROMPT, "stream": True, "max_tokens": 200}


@dataclass
class Running:
    gateway: Gateway
    task: "asyncio.Task[None]"
    http: aiohttp.ClientSession

    async def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        async with self.http.get(path, headers=headers) as response:
            return response.status, json.loads(await response.text())

    async def post(
        self, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        async with self.http.post(path, json=body, headers=headers) as response:
            return response.status, json.loads(await response.text())

    async def until_ready(self) -> None:
        await self.until(200)

    async def until(self, status: int) -> None:
        async with asyncio.timeout(10.0):
            while (await self.get("/ready"))[0] != status:  # noqa: ASYNC110  as a client would
                await asyncio.sleep(0.01)


class Template(PlainChatTemplate):
    def close(self) -> None:
        """There is no process to end."""


def load_text(_model: ModelDescription) -> TextSide:
    return TextSide(ByteTokenizer(), Template())


def options(worker: str) -> GatewayOptions:
    return GatewayOptions(workers=(worker,), secret=SECRET, admin_token="the-admin-token", drain_s=10.0)


def with_keys(*keys: str) -> AccessOptions:
    return AccessOptions(TenantOptions(api_keys=keys))


@asynccontextmanager
async def running(
    chosen: GatewayOptions, text: Callable[[ModelDescription], TextSide] = load_text
) -> AsyncIterator[Running]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    gateway = Gateway(chosen, text, MonotonicClock())
    task = asyncio.create_task(gateway.run(listener))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        try:
            yield Running(gateway, task, http)
        finally:
            gateway.stop()
            gateway.stop()
            await asyncio.wait((task,))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/w.sock"


def test_it_answers_503_until_a_worker_comes_and_again_when_it_has_gone(address: str) -> None:
    async def scenario() -> None:
        async with running(options(address)) as server:
            status, body = await server.post("/v1/completions", PROMPT)
            assert (status, body["error"]["type"]) == (503, "service_unavailable_error")
            async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET):
                await server.until_ready()
                status, body = await server.post("/v1/completions", PROMPT)
                assert (status, body["usage"]["completion_tokens"]) == (200, 4)
                assert (await server.get("/v1/models"))[1]["data"][0]["id"] == "scripted"
            status, body = await server.post("/v1/completions", PROMPT)
            assert (status, body["error"]["type"]) == (503, "service_unavailable_error")
            assert (await server.get("/live"))[0] == 200
            assert (await server.get("/workers", ADMIN))[1]["workers"][0]["state"] == "lost"

    run(scenario)


def test_keys_guard_all_but_the_probes(address: str) -> None:
    async def scenario() -> None:
        chosen = replace(options(address), access=with_keys("key-one", "key-two"))
        async with (
            scripted_worker(scripted_engine(PacedTokens()), address, SECRET),
            running(chosen) as server,
        ):
            await server.until_ready()
            for path in ("/v1/models", "/load", "/no/such/route"):
                status, body = await server.get(path)
                assert (status, body["error"]["type"]) == (401, "invalid_api_key")
            key = {"authorization": "Bearer key-two"}
            assert (await server.get("/v1/models", key))[0] == 200
            assert (await server.post("/v1/completions", PROMPT, key))[0] == 200
            assert [(await server.get(path))[0] for path in ("/health", "/live", "/ready", "/version")] == [
                200
            ] * 4
            assert (await server.get("/workers", key))[0] == 403
            async with server.http.get("/v1/models") as refused:
                assert refused.headers["x-request-id"].startswith("req-")

    run(scenario)


def test_a_page_of_an_allowed_origin_may_call(address: str) -> None:
    async def scenario() -> None:
        chosen = replace(options(address), cors_origins=("https://a.example",), access=with_keys("key-one"))
        async with running(chosen) as server:
            asked = {"origin": "https://a.example", "access-control-request-method": "POST"}
            async with server.http.options("/v1/chat/completions", headers=asked) as answer:
                assert answer.status == 200
                assert answer.headers["access-control-allow-origin"] == "https://a.example"
            async with server.http.get("/live", headers={"origin": "https://b.example"}) as other:
                assert "access-control-allow-origin" not in other.headers

    run(scenario)


def test_stopping_lets_the_running_answer_finish_and_takes_no_new_one(address: str) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        async with (
            scripted_worker(scripted_engine(tokens), address, SECRET),
            running(options(address)) as server,
        ):
            await server.until_ready()
            tokens.pace()
            tokens.allow(1)
            async with server.http.post("/v1/completions", json=STREAM) as stream:
                assert (await stream.content.readline()).startswith(b"data: ")
                assert server.gateway.num_running == 1
                server.gateway.stop()
                assert server.gateway.num_running == 0
                await refuses(server)
                tokens.release()
                text = (await stream.content.read()).decode()
            assert text.endswith("data: [DONE]\n\n")
            await server.task
            with pytest.raises(aiohttp.ClientConnectorError):
                await server.get("/live")

    run(scenario)


async def refuses(server: Running) -> None:
    """As a server does that finishes its last answers, on a kept connection as on new ones."""
    large = {**PROMPT, "prompt": "x" * 500_000}
    for method, path, body in (
        ("POST", "/v1/completions", PROMPT),
        ("POST", "/v1/completions", large),
        ("GET", "/health", None),
        ("GET", "/ready", None),
        ("GET", "/v1/models", None),
    ):
        async with server.http.request(method, path, json=body) as answer:
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert 1 <= int(answer.headers["retry-after"]) <= 120
            assert "shutting down" in (await answer.json())["error"]["message"]
    async with server.http.get("/live") as alive:
        assert (alive.status, alive.headers["connection"]) == (200, "close")
    assert (await server.get("/workers", ADMIN))[0] == 200


async def health_until_refused(server: Running) -> AsyncIterator[int]:
    with suppress(aiohttp.ClientConnectionError):
        while True:
            yield (await server.get("/health"))[0]


def test_a_drain_is_over_when_its_time_is_although_requests_keep_coming(address: str) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        chosen = replace(options(address), drain_s=0.3)
        async with scripted_worker(scripted_engine(tokens), address, SECRET), running(chosen) as server:
            await server.until_ready()
            tokens.pace()
            tokens.allow(1)
            async with server.http.post("/v1/completions", json=STREAM) as stream:
                assert (await stream.content.readline()).startswith(b"data: ")
                server.gateway.stop()
                statuses = [status async for status in health_until_refused(server)]
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.content.read()
            assert set(statuses) == {503}
            await server.task
            tokens.release()

    run(scenario)


def test_a_second_stop_ends_what_runs_with_an_error_frame(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        engine = scripted_engine(tokens)
        async with scripted_worker(engine, address, SECRET), running(options(address)) as server:
            await server.until_ready()
            tokens.pace()
            tokens.allow(1)
            async with server.http.post("/v1/completions", json=STREAM) as stream:
                assert (await stream.content.readline()).startswith(b"data: ")
                server.gateway.stop()
                server.gateway.stop()
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.content.read()
            await server.task
            tokens.release()

    run(scenario)
    assert "uvicorn.error" not in {record.name for record in caplog.records}


def test_a_worker_that_comes_back_is_told_of_as_loudly_as_its_going(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(options(address)) as server:
            puppet = PuppetWorker("unified", SECRET)
            async with serving(puppet, address):
                await server.until_ready()
            await server.until(503)
            async with serving(puppet, address):
                await server.until_ready()

    caplog.set_level(logging.INFO)
    run(scenario)
    told = worker_lines(caplog)
    assert told[:3] == [("INFO", "is ready"), ("WARNING", "has gone"), ("WARNING", "is back")]


def test_a_worker_that_ends_as_it_was_told_to_is_no_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(options(address)) as server:
            for _ in range(2):
                async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET):
                    await server.until_ready()
                await server.until(503)

    caplog.set_level(logging.INFO)
    run(scenario)
    left = ("INFO", "has left, as it had said that it would")
    assert worker_lines(caplog) == [("INFO", "is ready"), left, ("INFO", "is ready"), left]


def test_a_role_that_one_gateway_sets_is_known_to_all(address: str) -> None:
    async def role(server: Running) -> dict[str, float]:
        _, body = await server.get("/workers", ADMIN)
        weights: dict[str, float] = body["workers"][0]["weights"]
        return weights

    async def scenario() -> None:
        worker = scripted_worker(scripted_engine(PacedTokens()), address, SECRET)
        async with worker, running(options(address)) as one, running(options(address)) as other:
            await one.until_ready()
            await other.until_ready()
            for server, weights in (
                (one, {"prefill": 0.2, "decode": 1.0}),
                (other, {"prefill": 1.0, "decode": 0.0}),
                (one, {"prefill": 1.0, "decode": 1.0}),
            ):
                assert (await server.post("/workers/scripted-0/role", {"weights": weights}, ADMIN))[0] == 200
                async with asyncio.timeout(5.0):
                    while not await role(one) == await role(other) == weights:  # noqa: ASYNC110  as an operator would look
                        await asyncio.sleep(0.005)

    run(scenario)


def worker_lines(logs: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What is said of the worker by name: how loudly, and what."""
    said = [(record.levelname, *record.getMessage().partition(") ")) for record in logs.records]
    return [(level, rest) for level, name, _, rest in said if name.startswith("worker ")]
