"""The load generator against our own frontend: both ends of the wire agree on what was sent."""

import json
from collections.abc import Iterator

import pytest
from cyclopts import App

from atomesh.cli.bench import bench
from atomesh.errors import EngineError
from atomesh.frontend.app import create_app
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.app_server import serve_app
from atomesh.testing.byte_tokenizer import END, ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.scripted_service import Script, ScriptedService

DESCRIPTION = ModelDescription(
    name="scripted/letters",
    path="",
    architecture="scripted",
    dtype="float32",
    vocab_size=ByteTokenizer.vocab_size,
    max_model_len=512,
    eos_token_ids=(END,),
    block_size=16,
    num_blocks=64,
)


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(DESCRIPTION)


@pytest.fixture
def url(service: ScriptedService) -> Iterator[str]:
    model = ServedModel(DESCRIPTION.name, ByteTokenizer(), PlainChatTemplate(), service, 1_700_000_000)
    with serve_app(create_app(lambda: [model], FrontendOptions())) as server:
        yield server.url


def measure(url: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    app = App("bench", result_action="return_value")
    app.default(bench)
    app(["--url", url, "--json", "--input-len", "20", "--output-len", "6", "-n", "5", *arguments])
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_completions_are_counted_token_for_token(
    url: str, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    document = measure(url, capsys, "--vocab-size", "256")

    assert (document["completed"], document["failed"], document["notices"]) == (5, 0, [])
    assert (document["total_input_tokens"], document["total_output_tokens"]) == (100, 30)
    assert (document["input_tokens_from"], document["output_tokens_from"]) == ("usage", "usage")
    assert {len(request.prompt_token_ids) for request in service.requests} == {20}


def test_a_chat_is_measured_too(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = measure(url, capsys, "--endpoint", "chat", "-r", "inf")

    assert (document["completed"], document["failed"], document["total_output_tokens"]) == (5, 0, 30)


def test_an_answer_that_fails_half_way_is_a_failure(
    url: str, service: ScriptedService, capsys: pytest.CaptureFixture[str]
) -> None:
    # The warm-up is the first request.
    service.script = lambda _: (
        Script(error=EngineError("lost"), fail_after=3) if len(service.requests) == 3 else Script()
    )

    document = measure(url, capsys, "--vocab-size", "256", "-c", "1")

    assert (document["completed"], document["failed"], document["total_output_tokens"]) == (4, 1, 24)
    assert document["errors"] == [{"kind": "error frame 500", "count": 1, "example": "lost"}]
