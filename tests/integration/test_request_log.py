"""What the gateway's log says of requests, and what it never says: keys, prompts, answers."""

import asyncio
import io
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.observability import Observability
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.observability.log_format import configure_logging
from atomesh.observability.request_log import REQUEST_LOGGER
from atomesh.testing.gateway_server import GatewayServer, gateway_server
from atomesh.testing.puppet_worker import PuppetWorker, serving

SECRET = b"s" * 32
KEY, ADMIN = "key-that-nobody-may-see", "admin-token-that-nobody-may-see"
PROMPT = "Prometheus was bound"  # tokens are bytes: neither it nor its ids may be found
ANSWER = b"unbound"
BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The whole process's log as JSON, at the most talkative level."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    requests_level = logging.getLogger(REQUEST_LOGGER).level
    configure_logging("debug", "json", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger(REQUEST_LOGGER).setLevel(requests_level)


def options(address: str, *, logs_requests: bool = True) -> GatewayOptions:
    return GatewayOptions(
        workers=(address,),
        secret=SECRET,
        admin_token=ADMIN,
        access=AccessOptions(TenantOptions(api_keys=(KEY,))),
        observability=Observability(logs_requests=logs_requests),
    )


def request_lines(log: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["logger"].startswith(REQUEST_LOGGER)]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


async def ask_all(server: GatewayServer, puppet: PuppetWorker) -> None:
    """An answer, a request that its worker fails, one that is refused, one without a key."""
    body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 20}
    answering = asyncio.create_task(
        server.ask("POST", "/v1/completions", body, **BEARER, x_request_id="mine-1")
    )
    puppet.say(await puppet.submitted(1), *ANSWER, finish="stop")
    assert (await answering).status == 200
    failing = asyncio.create_task(
        server.ask("POST", "/v1/completions", body, **BEARER, x_request_id="mine-2")
    )
    for number in (2, 3, 4):
        if len(puppet.submits) < number and failing.done():
            break
        puppet.fail(await puppet.submitted(number), "EngineError")
        await asyncio.sleep(0.05)
    assert (await failing).status == 500
    bad = {**body, "temperature": 9}
    refused = await server.ask("POST", "/v1/completions", bad, **BEARER, x_request_id="mine-3")
    assert refused.status == 400
    stranger = await server.ask("POST", f"/v1/{KEY}?key={KEY}", {"prompt": PROMPT}, x_request_id="mine-4")
    assert stranger.status == 401


def test_each_request_has_a_line_with_its_ids_and_what_came_of_it(log: io.StringIO, tmp_path: Path) -> None:
    async def scenario() -> None:
        address = f"unix:{tmp_path}/w.sock"
        puppet = PuppetWorker("unified", SECRET)
        async with serving(puppet, address), gateway_server(options(address)) as server:
            await server.until(200)
            await ask_all(server, puppet)
        lines = request_lines(log)
        own = {line["request_id"]: line for line in lines if line.get("request_id", "").startswith("mine")}
        assert list(own) == ["mine-1", "mine-2", "mine-3", "mine-4"]
        good = own["mine-1"]
        assert {name: good[name] for name in ("level", "message", "status", "outcome", "model")} == {
            "level": "info",
            "message": "POST /v1/completions",
            "status": 200,
            "outcome": "ok",
            "model": "scripted",
        }
        assert (good["prompt_tokens"], good["completion_tokens"]) == (1 + len(PROMPT), len(ANSWER))
        assert (good["finish_reasons"], good["serving_path"]) == (["stop"], "unified")
        assert 0 < good["first_byte_s"] <= good["duration_s"]
        assert [(own[f"mine-{n}"]["status"], own[f"mine-{n}"]["error_type"]) for n in (2, 3, 4)] == [
            (500, "server_error"),
            (400, "invalid_request_error"),
            (401, "invalid_api_key"),
        ]
        assert own["mine-4"]["message"] == "POST other"

        legs = [line for line in lines if line["logger"] == f"{REQUEST_LOGGER}.legs"]
        assert legs
        for leg in legs:
            assert leg["attempt_id"].startswith(own["mine-2"]["answer_id"])
            assert (leg["worker"], leg["error_type"]) == ("unified-0", "EngineError")
            assert leg["incarnation"] == puppet.description.incarnation

    run(scenario)


def test_neither_keys_nor_what_is_said_is_ever_logged(log: io.StringIO, tmp_path: Path) -> None:
    async def scenario() -> None:
        address = f"unix:{tmp_path}/w.sock"
        puppet = PuppetWorker("unified", SECRET)
        async with serving(puppet, address), gateway_server(options(address)) as server:
            await server.until(200)
            await ask_all(server, puppet)
            await server.ask("GET", "/workers", authorization=f"Bearer {ADMIN}")
            await server.ask("GET", "/workers", **BEARER)
        text = log.getvalue()
        assert "POST /v1/completions" in text
        said = {KEY, ADMIN, PROMPT, ANSWER.decode()}
        said |= {str(list(data))[1:20] for data in (PROMPT.encode(), ANSWER)}
        assert [words for words in said if words in text] == []

    run(scenario)


def test_a_client_that_leaves_is_an_aborted_request(log: io.StringIO, tmp_path: Path) -> None:
    async def scenario() -> None:
        address = f"unix:{tmp_path}/w.sock"
        puppet = PuppetWorker("unified", SECRET)
        async with serving(puppet, address), gateway_server(options(address)) as server:
            await server.until(200)
            body = {"model": "scripted", "prompt": [1], "stream": True, "max_tokens": 20}
            headers = {**BEARER, "x-request-id": "gone"}
            async with server.http.post("/v1/completions", json=body, headers=headers) as answer:
                puppet.say(await puppet.submitted(1), 65)
                await answer.content.readline()
            await puppet.until(lambda worker: worker.aborts)
        [line] = [line for line in request_lines(log) if line.get("request_id") == "gone"]
        assert (line["status"], line["outcome"], line["completion_tokens"]) == (200, "aborted", 1)
        assert "error_type" not in line

    run(scenario)


def test_without_the_flag_no_request_has_a_line(log: io.StringIO, tmp_path: Path) -> None:
    async def scenario() -> None:
        address = f"unix:{tmp_path}/w.sock"
        puppet = PuppetWorker("unified", SECRET)
        async with (
            serving(puppet, address),
            gateway_server(options(address, logs_requests=False)) as server,
        ):
            await server.until(200)
            await ask_all(server, puppet)
        assert request_lines(log) == []

    run(scenario)
