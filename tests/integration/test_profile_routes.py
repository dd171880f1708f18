"""POST /start_profile and /stop_profile over real HTTP, a token plane and an engine in its own thread."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atomesh.clock import MonotonicClock
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_worker import PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
ADMIN = {"authorization": "Bearer the-admin-token"}
Ask = Callable[..., Awaitable[tuple[int, Any]]]


class Template(PlainChatTemplate):
    def close(self) -> None:
        """There is no process to end."""


@asynccontextmanager
async def gateway_at(address: str) -> AsyncIterator[Ask]:
    options = GatewayOptions(workers=(address,), secret=SECRET, admin_token="the-admin-token")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    gateway = Gateway(options, lambda _: TextSide(ByteTokenizer(), Template()), MonotonicClock())
    task = asyncio.create_task(gateway.run(listener))
    async with aiohttp.ClientSession(url) as http:

        async def ask(path: str, body: object = None, headers: dict[str, str] = ADMIN) -> tuple[int, Any]:
            async with http.post(path, json=body, headers=headers) as response:
                return response.status, json.loads(await response.text())

        try:
            yield ask
        finally:
            gateway.stop()
            gateway.stop()
            await asyncio.wait((task,))


async def until_ready(ask: Ask) -> None:
    while (await ask("/ping"))[0] != 200:  # noqa: ASYNC110  as a client would
        await asyncio.sleep(0.01)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/w.sock"


def test_steps_are_recorded_from_start_to_stop(address: str) -> None:
    async def scenario() -> None:
        async with (
            scripted_worker(scripted_engine(PacedTokens()), address, SECRET),
            gateway_at(address) as ask,
        ):
            await until_ready(ask)
            body = {"model": "scripted", "prompt": list(range(300)), "max_tokens": 4}
            assert (await ask("/v1/completions", body))[0] == 200  # before: not to be seen
            status, told = await ask("/start_profile", {"seconds": 60})
            assert (status, told["workers"], told["seconds"]) == (200, ["scripted-0"], 60)
            assert (await ask("/v1/completions", {**body, "prompt": list(range(300, 600))}))[0] == 200
            status, trace = await ask("/stop_profile")
            assert status == 200

            steps = [event for event in trace["traceEvents"] if event["name"] == "step"]
            # 300 tokens in steps of 256, then three more tokens, one a step
            assert [(step["args"]["prefill_tokens"], step["args"]["decodes"]) for step in steps] == [
                (256, 0),
                (44, 0),
                (0, 1),
                (0, 1),
                (0, 1),
            ]
            assert trace["otherData"]["scripted-0"]["ended_at_a_limit"] is False
            status, again = await ask("/stop_profile")
            assert (status, again["error"]["type"]) == (400, "invalid_request_error")
            assert "POST /start_profile first" in again["error"]["message"]

    run(scenario)


def test_what_cannot_be_recorded_is_refused(address: str) -> None:
    async def scenario() -> None:
        async with gateway_at(address) as ask:
            assert (await ask("/start_profile"))[0] == 503
            async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET):
                await until_ready(ask)
                for path in ("/start_profile", "/stop_profile"):
                    assert (await ask(path, None, {}))[0] == 401
                    assert (await ask(path, None, {"authorization": "Bearer another"}))[0] == 403
                    assert (await ask(path, {"worker": "nobody"}))[0] == 404
                for bad, param in (
                    ({"seconds": 0}, "seconds"),
                    ({"seconds": 301}, "seconds"),
                    ({"steps": 0}, "steps"),
                    ({"steps": 10_001}, "steps"),
                    ({"steps": "all"}, None),
                ):
                    status, answer = await ask("/start_profile", bad)
                    assert (status, answer["error"]["param"]) == (400, param)
                assert (await ask("/stop_profile"))[0] == 400

    run(scenario)
