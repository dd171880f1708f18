"""The client of the benchmark: every token is noted, and nothing but a whole answer passes for one."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from interference_load import Answer, Load, connect, contend

from atomesh.bench.failures import RequestFailed

VOCABULARY = 400
LOAD = Load(
    num_streams=2,
    stream_prompt=5,
    stream_tokens=4,
    lengths=(30, 20),
    answer_tokens=4,
    idle_s=0.0,
    vocab_size=VOCABULARY,
)


def frame(*token_ids: int, **more: object) -> str:
    return f"data: {json.dumps({'choices': [{'token_ids': token_ids}], **more})}\n\n"


TOKENS = [frame(7, 8), frame(), frame(9), frame(10)]
END = ["data: [DONE]\n\n"]


def ask(*frames: str, status: int = 200) -> tuple[Answer, list[dict[str, object]]]:
    """An answer of four tokens to a prompt of thirty, and the bodies that the server got."""
    bodies: list[dict[str, object]] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        response = web.StreamResponse(status=status, headers={"x-serving-path": "unified"})
        await response.prepare(request)
        await response.write("".join(frames).encode())
        return response

    async def run() -> Answer:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        async with TestServer(app) as server, connect(str(server.make_url("/")), "m", VOCABULARY) as client:
            return await client.ask(30, 4)

    return asyncio.run(run()), bodies


def test_every_token_has_its_moment_also_those_that_come_together() -> None:
    answer, [body] = ask(*TOKENS, *END)

    assert len(answer.token_at) == 4
    assert answer.ttft_s == answer.token_at[0] - answer.sent_at > 0
    assert answer.serving_path == "unified"
    prompt = body["prompt"]
    assert isinstance(prompt, list)
    assert len(prompt) == 30
    assert set(prompt) <= set(range(VOCABULARY // 4, VOCABULARY))
    assert (body["max_tokens"], body["ignore_eos"], body["return_token_ids"]) == (4, True, True)


def test_the_path_that_the_last_chunk_tells_goes_before_the_headers() -> None:
    answer, _ = ask(*TOKENS[:-1], frame(10, serving_path="prefill-decode"), *END)

    assert answer.serving_path == "prefill-decode"


@pytest.mark.parametrize(
    ("frames", "status", "kind"),
    [
        (TOKENS, 200, "cut stream"),
        ([*TOKENS[:-1], *END], 200, "wrong length"),
        ([TOKENS[0], 'event: error\ndata: {"error": {"code": 500}}\n\n'], 200, "error frame"),
        ([], 503, "HTTP 503"),
    ],
)
def test_what_is_no_whole_answer_is_a_failure(frames: list[str], status: int, kind: str) -> None:
    with pytest.raises(RequestFailed) as failure:
        ask(*frames, status=status)

    assert failure.value.kind == kind


def test_a_stream_that_ends_before_the_prompts_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interference_load.SETTLE_S", 0.0)

    async def complete(request: web.Request) -> web.Response:
        return web.Response(text="".join([*TOKENS, *END]), content_type="text/event-stream")

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        async with TestServer(app) as server, connect(str(server.make_url("/")), "m", VOCABULARY) as client:
            await contend(client, LOAD, interval_s=0.05)

    with pytest.raises(ExceptionGroup) as failures:
        asyncio.run(run())

    [failure] = failures.value.exceptions
    assert "raise --stream-tokens" in str(failure)
