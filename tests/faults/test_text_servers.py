"""Servers of text that say what nobody expects, stand still, or end late: each judged by what it did."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atomesh.mesh.backends import text_worker
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_worker import MAX_MODELS, MAX_NAME
from atomesh.mesh.gateway import relayed_answer
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.testing.fake_openai_server import DONE_FRAME, text_frame, usage_frame
from atomesh.testing.gateway_server import GatewayServer, Reply, gateway_server
from atomesh.testing.puppet_worker import MODEL, PuppetWorker, serving
from atomesh.testing.raw_text_server import END, SSE_HEAD, Post, RawTextServer, chunk, response, saying

ADMIN = "Bearer admin"
GOOD = saying(response(b'{"choices":[]}'))
FRAMES = text_frame("a") + usage_frame(3, 2)
FAULTS = {
    "garbage": saying(b"\x00\xff" * 500, then_closes=True),
    "bad chunk beside the head": saying(SSE_HEAD + chunk(b"data: ") + b"zz\r\n", then_closes=True),
    "NUL in a header": saying(response(b"{}", headers=b"content-type: te\x00xt\r\n")),
    "retry-after without end": saying(
        response(b"{}", status=503, headers=b"retry-after: " + b"9" * 5000 + b"\r\n")
    ),
    "no gzip": saying(response(b"none", headers=b"content-encoding: gzip\r\n")),
    "cut off": saying(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}", then_closes=True),
}


async def _before(
    test: Callable[[GatewayServer], Awaitable[None]], *servers: RawTextServer, **others: Any
) -> None:
    specs = []
    for server in servers:
        await server.__aenter__()
        specs.append(BackendSpec(server.url, "openai"))
    options = GatewayOptions(
        workers=(), secret=b"s" * 32, admin_token="admin", engines=tuple(specs), **others
    )
    async with gateway_server(options) as gateway:
        try:
            async with asyncio.timeout(10):
                while await num_ready(gateway) < len(servers):  # noqa: ASYNC110  as an operator would
                    await asyncio.sleep(0.01)
            await test(gateway)
        finally:
            for server in servers:
                await server.__aexit__()


def before(test: Callable[[GatewayServer], Awaitable[None]], *servers: RawTextServer, **others: Any) -> None:
    asyncio.run(_before(test, *servers, **others))


async def workers(gateway: GatewayServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.ask("GET", "/workers", authorization=ADMIN)).body["workers"]
    return found


async def num_ready(gateway: GatewayServer) -> int:
    return sum(one["state"] == "ready" for one in await workers(gateway))


async def metric(gateway: GatewayServer, start: str) -> float:
    async with gateway.http.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


async def ask(gateway: GatewayServer, **fields: str) -> Reply:
    return await gateway.ask("POST", "/v1/completions", {"prompt": "x", **fields})


async def streamed(gateway: GatewayServer) -> bytes:
    """As far as it came."""
    received = b""
    async with gateway.http.post("/v1/completions", json={"prompt": "x", "stream": True}) as answer:
        try:
            while data := await answer.content.readany():
                received += data
        except aiohttp.ClientPayloadError:
            pass
    return received


@pytest.mark.parametrize("post", FAULTS.values(), ids=FAULTS.keys())
def test_who_speaks_no_http_is_left_alone_and_the_other_asked(post: Post) -> None:
    bad, good = RawTextServer(post), RawTextServer(GOOD)

    async def test(gateway: GatewayServer) -> None:
        replies = [(await ask(gateway)).status for _ in range(16)]

        assert replies == [200] * 16
        assert good.num_posts == 16
        assert bad.num_posts == 5
        assert sorted(one["breaker"]["state"] for one in await workers(gateway)) == ["closed", "open"]
        assert (
            await metric(gateway, 'atomesh_relayed_requests_total{model_name="fake-model",outcome="failed"')
            == 5
        )
        assert await metric(gateway, "atomesh_client_disconnects_total") == 0

    before(test, bad, good)


def test_an_error_without_end_is_the_clients_to_mend() -> None:
    server = RawTextServer(saying(response(b"[" * 60_000, status=400)))

    async def test(gateway: GatewayServer) -> None:
        reply = await ask(gateway)
        assert (reply.status, reply.body["error"]["type"]) == (400, "invalid_request_error")

    before(test, server)


def test_whole_streams_whose_end_comes_late_are_successes() -> None:
    """Four faults among whole streams open no breaker: each stream is heard of."""
    posts = 0

    async def late(writer: asyncio.StreamWriter) -> None:
        nonlocal posts
        posts += 1
        if posts % 2:
            writer.write(response(b"{}", status=500))
            return
        writer.write(SSE_HEAD + chunk(FRAMES + DONE_FRAME))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(END)

    async def test(gateway: GatewayServer) -> None:
        for _ in range(6):
            await streamed(gateway)
            assert await streamed(gateway) == FRAMES + DONE_FRAME

        assert (
            await metric(gateway, 'atomesh_relayed_requests_total{model_name="fake-model",outcome="ok"') == 6
        )
        assert await metric(gateway, "atomesh_client_disconnects_total") == 0
        assert await metric(gateway, 'vllm:request_success_total{engine="0",finished_reason="abort"') == 0
        assert [one["breaker"] for one in await workers(gateway)] == [
            {"state": "closed", "faults": 0, "retry_in_s": None}
        ]

    before(test, RawTextServer(late))


@pytest.mark.parametrize("head", [b"", SSE_HEAD + chunk(text_frame("a"))], ids=["silent", "amid a stream"])
def test_c8_a_frozen_servers_answers_end(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_worker, "LOOK_S", 0.1)
    monkeypatch.setattr(text_worker, "BEAT_S", 0.05)
    monkeypatch.setattr(text_worker, "ANSWER_S", 0.1)

    async def post(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await writer.drain()
        server.is_frozen = True
        await asyncio.Event().wait()

    server = RawTextServer(post)

    async def test(gateway: GatewayServer) -> None:
        async with asyncio.timeout(5):
            received = await streamed(gateway)
        if head:
            assert received.startswith(text_frame("a") + b"event: error\ndata: ")
        else:
            assert b"service_unavailable_error" in received

    before(test, server)


def test_d3_a_client_that_reads_nothing_loses_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_answer, "UNREAD_S", 0.2)
    frames = chunk(text_frame("a" * 1000) * 100)

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(SSE_HEAD)
        while True:
            writer.write(frames)
            await writer.drain()

    async def test(gateway: GatewayServer) -> None:
        url = gateway.http._base_url
        assert url is not None
        assert url.host is not None
        body = b'{"prompt":"x","stream":true}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection((url.host, url.port or 0)) as client:
            client.sendall(head + body)
            async with asyncio.timeout(10):
                while not await metric(gateway, "atomesh_cut_streams_total"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await metric(gateway, "atomesh_relayed_requests_running") == 0
            assert await metric(gateway, "atomesh_relayed_requests_total") == 1
            assert [one["breaker"]["faults"] for one in await workers(gateway)] == [0]

    before(test, RawTextServer(flood))


def test_names_are_bounded_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(text_worker, "LOOK_S", 0.05)
    monkeypatch.setattr(text_worker, "BEAT_S", 0.05)
    names = ["x" * (MAX_NAME + 1), "", *(f"model-{number}" for number in range(MAX_MODELS + 40))]
    server = RawTextServer(GOOD, names)

    async def test(gateway: GatewayServer) -> None:
        listed = (await gateway.ask("GET", "/v1/models")).body["data"]
        assert [one["id"] for one in listed] == names[2 : 2 + MAX_MODELS]
        server.models = ["newer", *names]
        async with asyncio.timeout(5):
            while (await ask(gateway, model="newer")).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sum("are offered" in line.message for line in caplog.records) == 1

    before(test, server)


@pytest.mark.parametrize("first", ["worker", "server"])
def test_prompts_for_a_workers_model_go_to_no_server_of_text(first: str, tmp_path: Path) -> None:
    puppet, address = PuppetWorker("unified", b"s" * 32), f"unix:{tmp_path / 'w'}"
    server = RawTextServer(GOOD, [MODEL.name, "other"])
    server.is_frozen = first == "worker"

    async def scenario() -> None:
        async with server:
            engines = (BackendSpec(server.url, "openai"),)
            options = GatewayOptions((address,), b"s" * 32, "admin", engines=engines)
            async with gateway_server(options) as gateway:
                if first == "server":
                    await _until(gateway, lambda names: MODEL.name in names)
                async with serving(puppet, address):
                    if first == "worker":
                        await _until(gateway, lambda names: names == [MODEL.name])
                        server.is_frozen = False
                    await _until(gateway, lambda names: set(names) == {MODEL.name, "other"})
                    await _until_ours(gateway, puppet)
        assert server.num_posts == 0

    asyncio.run(scenario())


async def _until(gateway: GatewayServer, is_so: Callable[[list[str]], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            listed = (await gateway.ask("GET", "/v1/models")).body.get("data", ())
            if is_so([one["id"] for one in listed]):
                return
            await asyncio.sleep(0.01)


async def _until_ours(gateway: GatewayServer, puppet: PuppetWorker) -> None:
    """Both have been heard of: the prompt must be the worker's."""
    async with asyncio.timeout(10):
        while await num_ready(gateway) < 2:  # noqa: ASYNC110  as an operator would
            await asyncio.sleep(0.01)
    asked = asyncio.create_task(ask(gateway, model=MODEL.name))
    await puppet.submitted(1)
    asked.cancel()
    await asyncio.wait({asked})
