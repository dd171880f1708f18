"""Why an answer came from its workers: in the answer, at the operator's route, on the command line."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomesh.cli.explain import explain
from atomesh.errors import ConfigurationError
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.testing.gateway_server import GatewayServer, gateway_server
from atomesh.testing.scripted_worker import PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
TOKEN = "the-admin-token"
BODY = {"model": "scripted", "prompt": list(range(40)), "max_tokens": 3}


@asynccontextmanager
async def server(tmp_path: Path) -> AsyncIterator[GatewayServer]:
    address = f"unix:{tmp_path}/w.sock"
    options = GatewayOptions(workers=(address,), secret=SECRET, admin_token=TOKEN, drain_s=0.0)
    async with (
        scripted_worker(scripted_engine(PacedTokens()), address, SECRET),
        gateway_server(options) as running,
    ):
        await running.until(200)
        yield running


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


async def url_of(running: GatewayServer) -> str:
    async with running.http.get("/live") as response:
        return str(response.url.origin())


def check(told: dict[str, Any], answer_id: str, cached: int) -> None:
    """Of a completion that the only worker there is has answered."""
    assert (told["id"], told["model"]) == (answer_id, "scripted")
    [request] = told["requests"]
    [attempt] = request["attempts"]
    assert request["request_id"].startswith(answer_id)
    assert (attempt["policy"], attempt["is_rest"], attempt["runner_up"]) == ("kv_aware", False, None)
    assert attempt["chosen"] == attempt["candidates"][0]
    assert "scripted-0" in (attempt["chosen"]["prefill"], attempt["chosen"]["decode"])
    assert sum(attempt["chosen"]["terms"].values()) == pytest.approx(attempt["chosen"]["total_s"])
    measured = request["measured"]
    assert (measured["path"], measured["cached_tokens"]) == ("unified", cached)


def test_an_answer_explains_itself_to_whoever_asks_in_a_header(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server(tmp_path) as running:
            plain = await running.ask("POST", "/v1/completions", BODY)
            assert "explain" not in plain.body
            asked = await running.ask("POST", "/v1/completions", BODY, x_explain="1")
            check(asked.body["explain"], asked.body["id"], cached=32)

    run(scenario)


def test_a_stream_explains_itself_in_its_last_chunk_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server(tmp_path) as running:
            headers = {"x-explain": "1"}
            body = {**BODY, "stream": True}
            async with running.http.post("/v1/completions", json=body, headers=headers) as response:
                frames = (await response.text()).split("\n\n")
            assert frames[-2:] == ["data: [DONE]", ""]
            chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
            assert [index for index, chunk in enumerate(chunks) if "explain" in chunk] == [len(chunks) - 1]
            check(chunks[-1]["explain"], chunks[0]["id"], cached=0)

    run(scenario)


def test_the_operator_asks_later_and_nobody_else_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server(tmp_path) as running:
            answer_id = (await running.ask("POST", "/v1/completions", BODY)).body["id"]
            path = f"/explain/{answer_id}"
            told = await running.ask("GET", path, authorization=f"Bearer {TOKEN}")
            assert told.status == 200
            check(told.body, answer_id, cached=0)
            refused = await running.ask("GET", path)
            assert (refused.status, refused.body["error"]["type"]) == (401, "invalid_api_key")
            assert (await running.ask("GET", path, authorization="Bearer no")).status == 403
            unknown = await running.ask("GET", "/explain/cmpl-0", authorization=f"Bearer {TOKEN}")
            assert (unknown.status, "cmpl-0" in unknown.body["error"]["message"]) == (404, True)

    run(scenario)


def test_the_command_shows_it_as_tables_or_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOMESH_ADMIN_TOKEN", TOKEN)

    async def scenario() -> None:
        async with server(tmp_path) as running:
            url = await url_of(running)
            answer_id = (await running.ask("POST", "/v1/completions", BODY)).body["id"]
            assert await asyncio.to_thread(explain, answer_id, url=url) == 0
            table = capsys.readouterr().out
            assert answer_id in table
            assert "by kv_aware" in table
            assert "scripted-0" in table
            assert "predicted" in table
            assert await asyncio.to_thread(explain, answer_id, url=url + "/", json=True) == 0
            check(json.loads(capsys.readouterr().out), answer_id, cached=0)
            assert await asyncio.to_thread(explain, "cmpl-0", url=url) == 1
            heard = capsys.readouterr()
            assert (heard.out, heard.err.startswith("atomesh: no answer 'cmpl-0'")) == ("", True)

    run(scenario)


def test_where_no_gateway_answers_the_command_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMESH_ADMIN_TOKEN", TOKEN)
    with pytest.raises(ConfigurationError, match="--url"):
        explain("cmpl-0", url="http://127.0.0.1:9")
