"""The gateway before servers that take text: what goes to them, what comes back, and in whose words."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from atomesh.mesh.backends.context import LocalModel
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.fake_engine_server import Speech
from atomesh.testing.fake_openai_server import (
    CUT,
    DONE_FRAME,
    HOLD,
    FakeOpenAIServer,
    Script,
    chat_answer,
    frame,
    refusal,
    text_frame,
)
from atomesh.testing.fake_vllm_server import FakeVllmServer
from atomesh.testing.gateway_server import GatewayServer, gateway_server

KEY = "the-gateways-own-key"
CHAT = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "stream": True}
WHOLE = Script(
    [b'{"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'],
    content_type="application/json",
)


def options(*specs: BackendSpec, **others: Any) -> GatewayOptions:
    return GatewayOptions(workers=(), secret=b"s" * 32, admin_token="admin", engines=specs, **others)


def before(
    test: Callable[[GatewayServer, FakeOpenAIServer], Awaitable[None]], *scripts: Script, **others: Any
) -> None:
    """Runs `test` on a gateway before one text server that plays `scripts`."""

    async def whole() -> None:
        async with FakeOpenAIServer(*scripts) as server:
            spec = BackendSpec(server.url, "openai", api_key=KEY)
            async with gateway_server(options(spec, **others)) as gateway:
                await gateway.until(200)
                await test(gateway, server)

    asyncio.run(whole())


async def read(
    gateway: GatewayServer, body: object, path: str = "/v1/chat/completions"
) -> tuple[int, bytes, bool]:
    """Status, body as far as it came, and whether it came to its end."""
    received = bytearray()
    async with gateway.http.post(path, json=body) as response:
        try:
            async for chunk in response.content.iter_any():
                received += chunk
        except aiohttp.ClientPayloadError:
            return response.status, bytes(received), False
        return response.status, bytes(received), True


def test_a_stream_comes_back_byte_for_byte() -> None:
    script = chat_answer(["so", " it", " is"], prompt=7)

    async def test(gateway: GatewayServer, _server: FakeOpenAIServer) -> None:
        sent = b"".join(step for step in script.steps if isinstance(step, bytes))
        assert await read(gateway, CHAT) == (200, sent, True)

    before(test, script)


def test_a_whole_answer_keeps_its_usage_and_has_our_request_id() -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        reply = await gateway.ask("POST", "/v1/completions", {"prompt": "x"}, x_request_id="mine-1")

        assert (reply.status, reply.body["usage"]["total_tokens"]) == (200, 5)
        assert reply.headers["x-request-id"] == "mine-1"
        assert server.headers[0]["X-Request-ID"] == "mine-1"
        assert (server.paths, server.bodies[0]["model"]) == (["/v1/completions"], "fake-model")

    before(test, WHOLE)


def test_the_clients_key_stays_here_and_ours_goes_there() -> None:
    access = AccessOptions(TenantOptions(("client-key",)))

    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        refused = await gateway.ask("POST", "/v1/completions", {"prompt": "x"})
        taken = await gateway.ask(
            "POST", "/v1/completions", {"prompt": "x"}, authorization="Bearer client-key", cookie="a=b"
        )

        assert (refused.status, taken.status) == (401, 200)
        [headers] = server.headers
        assert headers["Authorization"] == f"Bearer {KEY}"
        assert "client-key" not in str(headers)
        assert "Cookie" not in headers

    before(test, WHOLE, access=access)


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        (refusal(400, "no such thing", param="top_p"), 400, "invalid_request_error"),
        (refusal(422, "no such thing", param="top_p"), 400, "invalid_request_error"),
        (refusal(401, "wrong key sk-123"), 500, "server_error"),
        (refusal(404, "/srv/models/x is not there"), 404, "not_found"),
        (refusal(429, "slow down"), 503, "service_unavailable_error"),
        (refusal(500, "Traceback: /srv/app.py"), 500, "server_error"),
        (
            Script([b"<html>bad gateway"], status=502, content_type="text/html"),
            503,
            "service_unavailable_error",
        ),
    ],
)
def test_errors_come_in_our_shape_and_tell_nothing_of_the_server(
    script: Script, status: int, kind: str
) -> None:
    async def test(gateway: GatewayServer, _server: FakeOpenAIServer) -> None:
        reply = await gateway.ask("POST", "/v1/chat/completions", CHAT)
        error = reply.body["error"]

        assert (reply.status, error["type"]) == (status, kind)
        assert set(error) == {"message", "type", "param", "code"}
        assert not any(secret in error["message"] for secret in ("sk-123", "/srv", "Traceback"))
        if status == 400:
            assert (error["message"], error["param"]) == ("no such thing", "top_p")
        assert ("retry-after" in reply.headers) == (status == 503)

    before(test, script)


@pytest.mark.parametrize(
    "script",
    [
        Script([text_frame("a"), text_frame("b"), CUT]),
        Script([text_frame("a"), text_frame("b")]),
        Script([text_frame("a"), text_frame("b"), b"data: {"]),
        Script(
            [text_frame("a"), text_frame("b"), frame({"error": {"message": "/srv", "code": 500}}), DONE_FRAME]
        ),
    ],
    ids=["cut", "ended early", "half a frame", "error frame"],
)
def test_a_stream_that_breaks_off_ends_in_an_error_frame_and_a_cut(script: Script) -> None:
    async def test(gateway: GatewayServer, _server: FakeOpenAIServer) -> None:
        status, body, is_whole = await read(gateway, {**CHAT, "prompt": "x"}, "/v1/completions")

        good = text_frame("a") + text_frame("b")
        assert (status, is_whole) == (200, False)
        assert body.startswith(good)
        rest = body[len(good) :]
        assert rest.startswith(b"event: error\ndata: ")
        assert json.loads(rest.split(b"data: ")[1])["error"]["code"] == 500
        assert b"[DONE]" not in body
        assert b"/srv" not in body

    before(test, script)


def test_responses_end_without_done() -> None:
    script = Script([frame({"type": "response.created"}, event="response.created"), frame({"type": "x"})])

    async def test(gateway: GatewayServer, _server: FakeOpenAIServer) -> None:
        sent = b"".join(step for step in script.steps if isinstance(step, bytes))
        body = {"model": "fake-model", "input": "x", "stream": True}
        assert await read(gateway, body, "/v1/responses") == (200, sent, True)

    before(test, script)


def test_a_client_that_leaves_ends_the_request_there() -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        response = await gateway.http.post("/v1/completions", json={"prompt": "x", "stream": True})
        await response.content.readany()
        response.close()

        await asyncio.wait_for(server.idle.wait(), 10)

    before(test, Script([text_frame("a"), HOLD]))


def test_a_deadline_holds_for_others_too() -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        reply = await gateway.ask("POST", "/v1/completions", {"prompt": "x"}, x_request_timeout="0.2")

        assert (reply.status, reply.body["error"]["type"]) == (504, "deadline_exceeded")
        await asyncio.wait_for(server.idle.wait(), 10)

    before(test, Script([HOLD]))


def test_what_an_answer_must_be_goes_there_as_it_came() -> None:
    asked = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}},
        "structured_outputs": {"structural_tag": "theirs"},
        "guided_json": {"type": "object"},
    }

    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        reply = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, **asked})

        assert reply.status == 200
        assert server.bodies[0].items() >= asked.items()

    before(test, WHOLE)


def test_what_is_the_meshs_own_is_refused() -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        field = await gateway.ask("POST", "/v1/completions", {"prompt": "x", "kv_transfer_params": {"a": 1}})
        tools = await gateway.ask("POST", "/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]})

        assert (field.status, field.body["error"]["param"]) == (400, "kv_transfer_params")
        assert tools.status == 200  # what our own models do not do yet, others may
        assert len(server.bodies) == 1

    before(test, WHOLE)


def test_a_server_that_is_gone_is_left_out_and_found_again() -> None:
    async def test() -> None:
        async with FakeOpenAIServer(WHOLE) as one, FakeOpenAIServer(WHOLE) as other:
            specs = (BackendSpec(one.url, "openai"), BackendSpec(other.url, "openai"))
            async with gateway_server(options(*specs)) as gateway:
                await gateway.until(200)
                await gateway.ask("POST", "/v1/completions", {"prompt": "x"})
                await one.__aexit__()
                replies = [await gateway.ask("POST", "/v1/completions", {"prompt": "x"}) for _ in range(4)]
                assert [reply.status for reply in replies] == [200] * 4

                await other.__aexit__()
                last = await gateway.ask("POST", "/v1/completions", {"prompt": "x"})
                assert (last.status, last.headers["retry-after"]) == (503, "2")
                await gateway.until(503)
                assert (await gateway.ask("GET", "/health")).status == 503

    asyncio.run(test())


def test_many_models_and_aliases_behind_one_gateway() -> None:
    """Token models and text models; each alias names its own."""
    letters = "lab/letters"
    text = ByteTokenizer()
    files = LocalModel(letters, "", "LlamaForCausalLM", text.vocab_size, (END,))

    async def test() -> None:
        async with (
            FakeVllmServer(letters) as tokens,
            FakeOpenAIServer(WHOLE, models=("large", "small")) as texts,
        ):
            tokens.speech = lambda _: Speech([*b"so it is", END], finish="stop")
            gateway_options = options(
                BackendSpec(tokens.url, "vllm"),
                BackendSpec(texts.url, "openai"),
                find_model=lambda name: files if name == letters else None,
                model_aliases=("gpt-x=large", f"abc={letters}"),
            )
            async with gateway_server(gateway_options) as gateway:
                names: set[str] = set()
                async with asyncio.timeout(10):
                    while len(names) < 5:
                        reply = await gateway.ask("GET", "/v1/models")
                        names = {model["id"] for model in reply.body.get("data", ())}
                        await asyncio.sleep(0.01)
                assert names == {letters, "abc", "large", "small", "gpt-x"}

                ours = await gateway.ask("POST", "/v1/completions", {"model": "abc", "prompt": "x"})
                assert ours.body["choices"][0]["text"] == "so it is"
                assert ours.body["choices"][0]["finish_reason"] == "stop"
                theirs = await gateway.ask("POST", "/v1/completions", {"model": "gpt-x", "prompt": "x"})
                assert theirs.status == 200
                assert texts.bodies[0]["model"] == "large"
                nobody = await gateway.ask("POST", "/v1/completions", {"model": "none", "prompt": "x"})
                assert (nobody.status, nobody.body["error"]["code"]) == (404, "model_not_found")
                tokenized = await gateway.ask("POST", "/tokenize", {"model": "large", "prompt": "x"})
                assert tokenized.status == 400

    asyncio.run(test())


def test_a_vllm_whose_files_are_elsewhere_is_a_text_server() -> None:
    async def test() -> None:
        async with FakeVllmServer("far/away") as server:
            server.speech = lambda _: Speech([1, 2])
            async with gateway_server(options(BackendSpec(server.url, "vllm"))) as gateway:
                await gateway.until(200)
                body = {"model": "far/away", "prompt": "x", "max_tokens": 2, "n": 1}
                reply = await gateway.ask("POST", "/v1/completions", body)

                assert reply.status == 200
                assert server.bodies[-1]["prompt"] == "x"

    asyncio.run(test())


MESSAGE = {
    "model": "fake-model",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
}
MESSAGE_FRAMES = [
    frame({"type": kind, **fields}, event=kind)
    for kind, fields in (
        ("message_start", {"message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "so"}}),
        (
            "message_delta",
            {"delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": 3, "output_tokens": 2}},
        ),
        ("message_stop", {}),
    )
]


@pytest.mark.parametrize("ending", [(), (DONE_FRAME,)], ids=["bare", "done"])
def test_a_message_s_stream_ends_with_its_own_event(ending: tuple[bytes, ...]) -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        billing = "x-anthropic-billing-header: cc_version=2.1.9.aaa; cc_entrypoint=cli; cch=%s;"
        for cch in ("eb6c6", "0aaa9"):
            body = {**MESSAGE, "system": f"{billing % cch}\n\nBe brief."}
            assert await read(gateway, body, "/v1/messages") == (200, b"".join(MESSAGE_FRAMES), True)
        assert server.paths == ["/v1/messages"] * 2
        assert [body["system"] for body in server.bodies] == ["Be brief."] * 2

    before(test, Script([*MESSAGE_FRAMES, *ending]))


def test_a_message_s_stream_without_its_end_is_cut_in_anthropic_s_words() -> None:
    async def test(gateway: GatewayServer, _server: FakeOpenAIServer) -> None:
        status, body, is_whole = await read(gateway, MESSAGE, "/v1/messages")
        assert (status, is_whole) == (200, False)
        *frames, last = body.split(b"\n\n")[:-1]
        assert b"\n\n".join([*frames, b""]) == b"".join(MESSAGE_FRAMES[:-1])
        name, data = last.split(b"\n")
        told = json.loads(data.removeprefix(b"data: "))
        assert (name, told["type"], sorted(told["error"])) == (b"event: error", "error", ["message", "type"])

    before(test, Script(MESSAGE_FRAMES[:-1]))


def test_another_server_s_tokens_are_not_counted_here() -> None:
    async def test(gateway: GatewayServer, server: FakeOpenAIServer) -> None:
        reply = await gateway.ask("POST", "/v1/messages/count_tokens", MESSAGE)
        assert (reply.status, reply.body["error"]["type"]) == (400, "invalid_request_error")
        assert "'fake-model' are another server's to count" in reply.body["error"]["message"]
        assert server.paths == []

    before(test, Script(MESSAGE_FRAMES))
