import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from atomesh.bench.completion_stream import Completion, CompletionStream
from atomesh.bench.failures import RequestFailed
from atomesh.bench.openai_client import OpenAIClient
from atomesh.testing.fake_openai_server import (
    CUT,
    DONE_FRAME,
    HOLD,
    FakeOpenAIServer,
    Script,
    chat_answer,
    frame,
    refusal,
    text_answer,
    text_frame,
)

PATH = "/v1/completions"


async def complete(server: FakeOpenAIServer, *, timeout_s: float | None = None, **client: Any) -> Completion:
    async with server, OpenAIClient(server.url, **client) as door:
        return await door.complete(PATH, {"prompt": "hi"}, timeout_s=timeout_s)


def failure_of(script: Script, *, timeout_s: float | None = None) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(complete(FakeOpenAIServer(script), timeout_s=timeout_s))
    return caught.value


def test_a_whole_stream_is_a_completion() -> None:
    server = FakeOpenAIServer(text_answer(["a", "b"], prompt=4))

    done = asyncio.run(complete(server, api_key="k"))

    assert (done.output_tokens, done.prompt_tokens, done.finish_reason) == (2, 4, "length")
    assert 0 < done.first_s <= done.last_s
    assert server.bodies == [{"prompt": "hi"}]
    assert server.headers[0]["Authorization"] == "Bearer k"


def test_without_a_key_no_credentials_are_sent() -> None:
    server = FakeOpenAIServer(text_answer(["a"]))

    asyncio.run(complete(server))

    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_url_may_end_in_v1(suffix: str) -> None:
    async def main() -> list[str]:
        async with FakeOpenAIServer(models=["m"]) as server, OpenAIClient(server.url + suffix) as client:
            return await client.models()

    assert asyncio.run(main()) == ["m"]


def test_a_connection_is_used_again_after_a_whole_stream() -> None:
    async def main() -> set[Any]:
        peers = set()
        async with FakeOpenAIServer(text_answer(["a"])) as server, OpenAIClient(server.url) as client:
            for _ in range(3):
                await client.complete(PATH, {}, timeout_s=None)
            peers.update(server.peers)
        return peers

    assert len(asyncio.run(main())) == 1


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (refusal(503, "full"), "HTTP 503", "full"),
        (Script([b"<html>"], status=502, content_type="text/html"), "HTTP 502", "<html>"),
        (Script([b""], status=404), "HTTP 404", "Not Found"),
        (Script([b'{"error": "no"}'], status=400), "HTTP 400", "no"),
        (Script([b"[]"], status=400), "HTTP 400", "[]"),
        (Script([b"{}"], content_type="application/json"), "not a stream", "the answer is application/json"),
        (Script([text_frame("a"), CUT]), "cut stream", ""),
        (Script([text_frame("a")]), "cut stream", "without [DONE]"),
        (Script([text_frame("a"), text_frame("", finish="stop")]), "cut stream", "without [DONE]"),
        (Script([text_frame("a"), DONE_FRAME]), "no finish reason", ""),
        (
            Script([text_frame("a"), frame({"error": {"message": "lost", "code": 503}}, event="error"), CUT]),
            "error frame 503",
            "lost",
        ),
        (Script([b"data: {\n\n"]), "malformed chunk", ""),
        (Script([CUT]), "cut stream", ""),
    ],
)
def test_what_is_no_success_is_a_failure_of_its_kind(script: Script, kind: str, message: str) -> None:
    failure = failure_of(script)

    assert failure.kind == kind
    assert message in failure.message


def test_a_refusal_keeps_its_status_and_field() -> None:
    failure = failure_of(refusal(400, "too long", param="prompt"))

    assert (failure.status, failure.param) == (400, "prompt")


@pytest.mark.parametrize("before", [[], [text_frame("a")]], ids=["before the first token", "after it"])
def test_a_stalled_stream_times_out(before: list[bytes]) -> None:
    failure = failure_of(Script([*before, HOLD]), timeout_s=0.05)

    assert (failure.kind, failure.message) == ("timeout", "not finished within 0.05 s")


def test_what_follows_done_is_not_waited_for_long_nor_read_as_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("atomesh.bench.openai_client.DRAIN_TIMEOUT_S", 0.01)
    script = Script([*text_answer(["a"]).steps, HOLD])

    assert asyncio.run(complete(FakeOpenAIServer(script))).output_tokens == 1


def test_a_server_that_is_not_there_is_no_connection() -> None:
    async def main() -> None:
        async with FakeOpenAIServer() as server:
            url = server.url
        async with OpenAIClient(url) as client:
            await client.models()

    with pytest.raises(RequestFailed) as caught:
        asyncio.run(main())
    assert caught.value.kind == "no connection"


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"data": 3}', b'{"data": [{}]}'])
def test_a_list_of_models_without_models_is_malformed(body: bytes) -> None:
    async def main() -> None:
        server = FakeOpenAIServer()
        server.models_scripts = [Script([body], content_type="application/json")]
        async with server, OpenAIClient(server.url) as client:
            await client.models()

    with pytest.raises(RequestFailed) as caught:
        asyncio.run(main())
    assert caught.value.kind == "malformed answer"


def test_pieces_come_one_by_one_and_closing_early_hangs_up() -> None:
    async def main() -> list[str]:
        steps = chat_answer(["a", "b"]).steps
        server = FakeOpenAIServer(Script([*steps[:3], HOLD]))
        heard = []
        async with server, OpenAIClient(server.url) as client:
            async with aclosing(client.pieces(PATH, {}, CompletionStream(), timeout_s=None)) as pieces:
                async for piece in pieces:
                    heard.append(piece.text)
                    if len(heard) == 3:
                        break
            async with asyncio.timeout(5):
                await server.idle.wait()
        return heard

    assert asyncio.run(main()) == ["", "a", "b"]


def test_it_is_used_as_a_context_manager() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(OpenAIClient("http://127.0.0.1:1").models())


@pytest.mark.parametrize("url", ["127.0.0.1:8201", "http://127.0.0.1:8201/v1", "127.0.0.1:8201/"])
def test_a_url_may_do_without_its_scheme(url: str) -> None:
    assert OpenAIClient(url).url == "http://127.0.0.1:8201"
