"""FAULTS A4, B1 and B2 before engines that are not ours: who is a pair, and what a pair is asked for.

A gateway over real HTTP, with doubles of vLLM and SGLang behind it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from atomesh.mesh.backends.context import LocalModel
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.testing.backend_bench import MODEL
from atomesh.testing.fake_engine_server import FakeEngineServer, Speech
from atomesh.testing.fake_sglang_server import FakeSglangServer, Rooms
from atomesh.testing.fake_vllm_server import FakeVllmServer
from atomesh.testing.gateway_server import GatewayServer, gateway_server

ADMIN = {"authorization": "Bearer admin"}
STRICT = DispatchRules(PlacementRules(require_disaggregation=True))
Test = Callable[[GatewayServer, Sequence[FakeEngineServer]], Awaitable[None]]


def engine(kind: str, role: str, rooms: Rooms, model: str = MODEL, **told: Any) -> FakeEngineServer:
    """`told` is what the double says of itself, by attribute."""
    made = FakeVllmServer(model) if kind == "vllm" else FakeSglangServer(model, role=role, rooms=rooms)
    for name, value in told.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


@asynccontextmanager
async def behind(
    prefill: Mapping[str, Any], decode: Mapping[str, Any], rules: DispatchRules
) -> AsyncIterator[tuple[GatewayServer, list[FakeEngineServer]]]:
    """A gateway before a prefill and a decode engine, both known to it; each is `engine`'s words."""
    async with AsyncExitStack() as stack:
        rooms, servers, specs = Rooms(), [], []
        for role, words in (("prefill", prefill), ("decode", decode)):
            server = engine(role=role, rooms=rooms, **words)
            await stack.enter_async_context(server)
            servers.append(server)
            specs.append(BackendSpec(server.url, words["kind"], role))  # type: ignore[arg-type]
        options = GatewayOptions(
            workers=(),
            secret=b"s" * 32,
            admin_token="admin",
            engines=tuple(specs),
            rules=rules,
            find_model=lambda name: LocalModel(name, "/models/x", "LlamaForCausalLM", 1000, (2,)),
        )
        gateway = await stack.enter_async_context(gateway_server(options))
        async with asyncio.timeout(10.0):
            while [one["state"] for one in await workers(gateway)] != ["ready"] * 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while "no model is ready" in json.dumps((await gateway.ask("GET", "/v1/models")).body):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield gateway, servers


def run(prefill: Mapping[str, Any], decode: Mapping[str, Any], test: Test, is_strict: bool = False) -> None:
    async def whole() -> None:
        async with behind(prefill, decode, STRICT if is_strict else DispatchRules()) as (gateway, servers):
            await test(gateway, servers)

    asyncio.run(whole())


async def workers(gateway: GatewayServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.ask("GET", "/workers", **ADMIN)).body["workers"]
    return found


async def complete(gateway: GatewayServer, **fields: Any) -> Any:
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 8, "return_token_ids": True, **fields}
    return await gateway.ask("POST", "/v1/completions", body)


def saying(*tokens: int) -> Callable[[dict[str, Any]], Speech]:
    return lambda _: Speech(tokens)


def tokens_of(reply: Any) -> list[int]:
    found: list[int] = reply.body["choices"][0]["token_ids"]
    return found


VLLM, SGLANG = {"kind": "vllm"}, {"kind": "sglang"}
MISMATCHED = {
    "vllm block size": (VLLM, {**VLLM, "block_size": 32}, "block_size is 16 here and 32 there"),
    "vllm dtype": (VLLM, {**VLLM, "cache_dtype": "fp8"}, "dtype is 'auto' here and 'fp8' there"),
    "sglang page size": (SGLANG, {**SGLANG, "page_size": 64}, "block_size is 1 here and 64 there"),
    "sglang dtype": (SGLANG, {**SGLANG, "kv_cache_dtype": "fp8_e5m2"}, "dtype is 'auto' here and 'fp8_e5m2'"),
    "two engines": (VLLM, SGLANG, "name is 'vllm' here and 'sglang' there"),
}


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize(("prefill", "decode", "words"), MISMATCHED.values(), ids=MISMATCHED.keys())
def test_a4_engines_that_tell_of_a_difference_are_no_pair(
    prefill: Mapping[str, Any], decode: Mapping[str, Any], words: str, is_strict: bool
) -> None:
    async def test(gateway: GatewayServer, servers: Sequence[FakeEngineServer]) -> None:
        reply = await complete(gateway)
        assert reply.status == 503
        assert words in reply.body["error"]["message"]
        assert 1 <= int(reply.headers["retry-after"]) <= 120
        shown = await workers(gateway)
        assert words in shown[0]["incompatible"][0]["difference"]
        assert [len(one["incompatible"]) for one in shown] == [1, 1]
        assert [server.bodies for server in servers] == [[], []]

    run(prefill, decode, test, is_strict)


def test_a4_engines_of_two_models_serve_each_its_own() -> None:
    async def test(gateway: GatewayServer, servers: Sequence[FakeEngineServer]) -> None:
        async with asyncio.timeout(10.0):
            while len((await gateway.ask("GET", "/v1/models")).body["data"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for number, (model, server) in enumerate(zip((MODEL, "lab/others"), servers, strict=True)):
            server.speech = saying(20 + number)
            reply = await complete(gateway, model=model)
            assert (reply.status, tokens_of(reply)) == (200, [20 + number])
            assert reply.headers["x-serving-path"] == "local-prefill"
        assert [[body["model"] for body in server.bodies] for server in servers] == [[MODEL], ["lab/others"]]
        assert not any("kv_transfer_params" in body for server in servers for body in server.bodies)

    run(VLLM, {**VLLM, "model": "lab/others"}, test)


@pytest.mark.parametrize("words", [VLLM, SGLANG], ids=["vllm", "sglang"])
@pytest.mark.parametrize("streamed", [False, True])
def test_b2_the_caps_are_prefills_own_and_the_answer_is_whole(
    words: Mapping[str, Any], streamed: bool
) -> None:
    """Streamed or not, with usage or without: what the client asked for reaches decode alone."""

    async def test(gateway: GatewayServer, servers: Sequence[FakeEngineServer]) -> None:
        prefill, decode = servers
        prefill.speech = lambda _: Speech([99], cached=2)
        decode.speech = lambda _: Speech([11, 12, 13])
        fields: dict[str, Any] = {"min_tokens": 2, "max_tokens": 6, "seed": 3}
        if streamed:
            tokens, usage = await stream(gateway, **fields, stream_options={"include_usage": True})
        else:
            reply = await complete(gateway, **fields)
            assert reply.headers["x-serving-path"] == "prefill-decode"
            tokens, usage = tokens_of(reply), reply.body["usage"]
        assert tokens == [11, 12, 13]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 3)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
        [asked], [answered] = prefill.bodies, decode.bodies
        check_caps(words["kind"], asked, answered)

    run(words, words, test, is_strict=True)


def check_caps(kind: str, asked: Mapping[str, Any], answered: Mapping[str, Any]) -> None:
    assert (asked["stream"], answered["stream"]) == (False, True)
    assert "stream_options" not in asked
    if kind == "vllm":
        caps = ("max_tokens", "max_completion_tokens", "min_tokens")
        assert [asked[name] for name in caps] == [1, 1, 1]
        assert (answered["max_tokens"], answered["min_tokens"]) == (6, 2)
        assert answered.get("max_completion_tokens", 6) == 6
    else:
        for body in (asked, answered):  # its prefill server takes no notice of both caps
            sampling = body["sampling_params"]
            assert (sampling["max_new_tokens"], sampling["min_new_tokens"]) == (6, 2)


async def stream(gateway: GatewayServer, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    """Tokens and usage of a stream that ends as it must."""
    body = {"model": MODEL, "prompt": [5, 6, 7], "stream": True, "return_token_ids": True, **fields}
    async with gateway.http.post("/v1/completions", json=body) as response:
        assert response.status == 200
        assert response.headers["x-serving-path"] == "prefill-decode"
        lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    frames = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    tokens = [token for one in frames for choice in one["choices"] for token in choice["token_ids"]]
    return tokens, frames[-1]["usage"]


def test_b1_one_token_never_touches_decode() -> None:
    async def test(gateway: GatewayServer, servers: Sequence[FakeEngineServer]) -> None:
        servers[0].speech = lambda _: Speech([42])
        reply = await complete(gateway, max_tokens=1)
        assert (reply.status, tokens_of(reply)) == (200, [42])
        assert reply.body["usage"]["completion_tokens"] == 1
        assert [len(server.bodies) for server in servers] == [1, 0]
        assert "kv_transfer_params" not in servers[0].bodies[0]

    run(VLLM, VLLM, test, is_strict=True)


def test_b1_one_token_of_halves_that_need_each_other_comes_from_decode() -> None:
    async def test(gateway: GatewayServer, servers: Sequence[FakeEngineServer]) -> None:
        servers[0].speech = lambda _: Speech([99])
        servers[1].speech = lambda _: Speech([42])
        reply = await complete(gateway, max_tokens=1)
        assert (reply.status, tokens_of(reply)) == (200, [42])
        assert reply.body["usage"]["completion_tokens"] == 1

    run(SGLANG, SGLANG, test, is_strict=True)
