"""A gateway with one good member and one that says what it must not: the good one is served on."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from atomesh.errors import ModelFileError
from atomesh.mesh.backends.context import LocalModel
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.vllm import VllmBackend
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.protocol.generation import Timings
from atomesh.protocol.registration import PATH
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.fake_vllm_server import FakeVllmServer
from atomesh.testing.gateway_server import GatewayServer, byte_text, gateway_server
from atomesh.testing.puppet_worker import LAYOUT, PuppetWorker, serving

SECRET = b"s" * 32
ADMIN = "Bearer the-admin-token"


def options(*workers: str) -> GatewayOptions:
    return GatewayOptions(workers=workers, secret=SECRET, admin_token="the-admin-token")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


async def listed(gateway: GatewayServer, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """GET /workers by address, once it is so."""
    async with asyncio.timeout(10.0):
        while True:
            workers = (await gateway.ask("GET", "/workers", authorization=ADMIN)).body["workers"]
            by_address = {worker["address"]: worker for worker in workers}
            if condition(by_address):
                return by_address
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModelFileError("there is no such model"), "there is no such model"),
        (RecursionError("too deep"), "RecursionError: too deep"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_not_offered_before_another_hello(
    tmp_path: Path, error: Exception, why: str
) -> None:
    troubles = [error]

    def load(model: ModelDescription) -> TextSide:
        if model.name == "elsewhere" and troubles:
            raise troubles.pop()
        return byte_text(model)

    async def scenario() -> None:
        good, bad = (f"unix:{tmp_path}/{name}" for name in ("good", "bad"))
        theirs = PuppetWorker("unified", SECRET)
        theirs.description = replace(
            theirs.description, worker_id="bad", model=replace(theirs.description.model, name="elsewhere")
        )
        async with serving(theirs, bad), gateway_server(options(bad, good), load) as gateway:
            await listed(gateway, lambda workers: workers[bad]["not_offered"] == why)
            assert (await gateway.ask("GET", "/ready")).status == 503
            async with serving(PuppetWorker("unified", SECRET), good):
                await gateway.until(200)
                models = (await gateway.ask("GET", "/v1/models")).body["data"]
                assert [model["id"] for model in models] == ["scripted"]
                theirs.hang_up()
                await listed(gateway, lambda workers: workers[bad]["not_offered"] is None)
                models = (await gateway.ask("GET", "/v1/models")).body["data"]
                assert [model["id"] for model in models] == ["scripted", "elsewhere"]

    run(scenario)


class Engine(FakeVllmServer):
    """Says `said` at a path instead of its own words; `asked` counts how often."""

    def __init__(self, said: Mapping[str, bytes]) -> None:
        super().__init__("theirs")
        self.said = said
        self.asked = 0

    async def models(self, request: web.Request) -> web.Response:
        return self._instead(request) or await super().models(request)

    async def metrics(self, request: web.Request) -> web.Response:
        return self._instead(request) or await super().metrics(request)

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.get("/get_server_info", self.info)]

    async def info(self, request: web.Request) -> web.Response:
        return self._instead(request) or web.json_response({"model_path": "theirs"})

    def _instead(self, request: web.Request) -> web.Response | None:
        body = self.said.get(request.path)
        self.asked += body is not None
        return None if body is None else web.Response(body=body, content_type="application/json")


def with_engine(good: str, engine: Engine, kind: str) -> GatewayOptions:
    return GatewayOptions(
        workers=(good,),
        secret=SECRET,
        admin_token="the-admin-token",
        engines=(BackendSpec(engine.url, kind),),
        find_model=lambda name: LocalModel(name, "", "LlamaForCausalLM", 1000, (2,)),
    )


async def refusals(gateway: GatewayServer) -> float:
    async with gateway.http.get("/metrics") as response:
        text = await response.text()
    found = re.search(r'^atomesh_worker_refusals_total{reason="message"} (\S+)$', text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


async def once(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10.0):
        while not await condition():  # noqa: ASYNC110  the test waits for what it cannot be told of
            await asyncio.sleep(0.01)


DEEP = b'{"data":[{"id":"m","x":' + b"[" * 2000


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("vllm", "/v1/models"),
        ("sglang", "/v1/models"),
        ("sglang", "/get_server_info"),
        ("openai", "/v1/models"),
    ],
)
def test_words_nested_too_deeply_end_no_gateway(tmp_path: Path, kind: str, path: str) -> None:
    async def scenario() -> None:
        good, engine = f"unix:{tmp_path}/good", Engine({path: DEEP})
        async with (
            serving(PuppetWorker("unified", SECRET), good),
            engine,
            gateway_server(with_engine(good, engine, kind)) as gateway,
        ):
            await once(lambda: _true(engine.asked))
            await gateway.until(200)
            states = await listed(gateway, lambda workers: workers[good]["state"] == "ready")
            assert states[engine.url]["state"] == "connecting"
            engine.said = {}
            await listed(gateway, lambda workers: workers[engine.url]["state"] == "ready")

    run(scenario)


async def _true(value: object) -> object:
    return value


@pytest.mark.parametrize(
    "metrics",
    [
        "vllm:num_requests_running 1e999",
        "vllm:num_requests_running --",
        "vllm:num_requests_running ٣.٣.",
        "vllm:num_requests_running 1" + "0" * 300,
        "process_start_time_seconds 1e999",
        'vllm:cache_config_info{block_size="9' + "9" * 40 + '",num_gpu_blocks="x"} 1',
        'vllm:cache_config_info{block_size="16",num_gpu_blocks="1' + "0" * 4500 + '"} 1',
        'vllm:cache_config_info{block_size="0",num_gpu_blocks="-7"} 1',
    ],
)
def test_metrics_that_are_no_numbers_are_as_good_as_none(tmp_path: Path, metrics: str) -> None:
    async def scenario() -> None:
        good, engine = f"unix:{tmp_path}/good", Engine({"/metrics": metrics.encode()})
        async with (
            serving(PuppetWorker("unified", SECRET), good),
            engine,
            gateway_server(with_engine(good, engine, "vllm")) as gateway,
        ):
            workers = await listed(gateway, lambda workers: workers[engine.url]["state"] == "ready")
            assert workers[engine.url]["load"]["running"] == 0
            assert workers[engine.url]["engine"]["kv_tokens"] == 0
            await once(lambda: _true(engine.asked > 2))
            assert not gateway.task.done()

    run(scenario)


def test_an_engine_whose_sizes_cannot_be_is_refused_and_counted(tmp_path: Path) -> None:
    said = {"/v1/models": b'{"data":[{"id":"theirs","max_model_len":-5}]}'}

    async def scenario() -> None:
        good, engine = f"unix:{tmp_path}/good", Engine(said)
        async with (
            serving(PuppetWorker("unified", SECRET), good),
            engine,
            gateway_server(with_engine(good, engine, "vllm")) as gateway,
        ):
            await once(lambda: refusals(gateway))
            workers = await listed(gateway, lambda workers: workers[good]["state"] == "ready")
            assert workers[engine.url]["state"] == "connecting"

    run(scenario)


@pytest.mark.parametrize("part", ["model", "layout", "texts", "id"])
def test_a_worker_whose_hello_cannot_be_is_refused_and_the_others_serve(
    tmp_path: Path, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = PuppetWorker("unified", SECRET)
    told = theirs.description
    theirs.description = {
        "model": replace(told, model=replace(told.model, block_size=0)),
        "layout": replace(told, kv_layout=replace(LAYOUT, block_size=0)),
        "texts": replace(told, texts=(told.model,)),
        "id": replace(told, worker_id='a"\n' * 10_000),
    }[part]

    async def scenario() -> None:
        good, bad = (f"unix:{tmp_path}/{name}" for name in ("good", "bad"))
        ours = PuppetWorker("unified", SECRET)
        async with serving(theirs, bad), serving(ours, good), gateway_server(options(bad, good)) as gateway:
            await once(lambda: refusals(gateway))
            await gateway.until(200)
            body = {"prompt": "x", "max_tokens": 1}
            asking = asyncio.create_task(gateway.ask("POST", "/v1/completions", body))
            ours.say(await ours.submitted(), 97, finish="length")
            assert (await asking).body["choices"][0]["text"] == "a"
            assert (await listed(gateway, lambda _: True))[bad]["state"] == "connecting"

    run(scenario)
    assert any(f"no worker of ours at unix:{tmp_path}/bad (message, 1" in line for line in caplog.messages)


@pytest.mark.parametrize("token", [-5, 2**63])
def test_a_token_that_no_model_has_is_told_as_the_engine_s_fault(tmp_path: Path, token: int) -> None:
    async def scenario() -> None:
        address, theirs = f"unix:{tmp_path}/bad", PuppetWorker("unified", SECRET)
        async with serving(theirs, address), gateway_server(options(address)) as gateway:
            await gateway.until(200)
            asking = asyncio.create_task(
                gateway.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 3})
            )
            submit = await theirs.submitted()
            theirs.say(submit, 97, cached_tokens=0, timings=Timings(0.0, 0.0))
            theirs.say(submit, token)
            reply = await asking
            assert (reply.status, reply.body["error"]["type"]) == (500, "server_error")
            assert "no model has" in reply.body["error"]["message"]
            await theirs.until(lambda puppet: puppet.aborts)
            workers = await listed(gateway, lambda _: True)
            assert workers[address]["breaker"]["faults"] == 1

    run(scenario)


@pytest.mark.parametrize("address", ["a..b:80", "x" * 64 + ".com:80", "\0:80", " :80", "unix:/tmp/\0"])
def test_an_address_that_could_not_be_looked_up_is_refused_by_its_name(address: str) -> None:
    async def scenario() -> None:
        async with gateway_server(options()) as gateway:
            reply = await gateway.ask("POST", "/workers", {"address": address}, authorization=ADMIN)
            assert (reply.status, reply.body["error"]["param"]) == (400, "address")
            assert repr(address.removeprefix("unix:"))[1:-1] in reply.body["error"]["message"]
            assert (await gateway.ask("GET", "/workers", authorization=ADMIN)).body["workers"] == []
            assert not gateway.task.done()

    run(scenario)


def test_an_engine_that_brings_up_an_error_of_ours_is_lost_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, troubles = VllmBackend.look, [ZeroDivisionError("of ours")]

    async def look_or_fail(backend: VllmBackend) -> LoadReport:
        if troubles:
            raise troubles.pop()
        return await look(backend)

    monkeypatch.setattr(VllmBackend, "look", look_or_fail)

    async def scenario() -> None:
        good, engine = f"unix:{tmp_path}/good", Engine({})
        async with (
            serving(PuppetWorker("unified", SECRET), good),
            engine,
            gateway_server(with_engine(good, engine, "vllm")) as gateway,
        ):
            await listed(gateway, lambda workers: workers[engine.url]["state"] == "lost")
            assert (await gateway.ask("GET", "/ready")).status == 200
            await listed(gateway, lambda workers: workers[engine.url]["state"] == "ready")

    run(scenario)
    assert [bool(record.exc_info) for record in caplog.records if "is tried again" in record.message] == [
        True
    ]


def test_a_registration_nested_too_deeply_is_a_bad_request() -> None:
    async def scenario() -> None:
        async with gateway_server(options()) as gateway, gateway.http.post(PATH, data=DEEP) as response:
            assert response.status == 400
            assert "nested too deeply" in await response.text()

    run(scenario)
