import asyncio
from typing import Any

import numpy as np
import pytest

from atomesh.bench.benchmark import Benchmark, Outcome, measure, warm_up
from atomesh.bench.goodput import Objectives
from atomesh.bench.openai_client import OpenAIClient
from atomesh.bench.prompts import TokenIdWriter, WordWriter
from atomesh.bench.readiness import choose_model
from atomesh.bench.record import RequestRecord
from atomesh.bench.sender import Sender
from atomesh.bench.workload import SyntheticTraffic, plan_synthetic
from atomesh.clock import MonotonicClock
from atomesh.errors import ConfigurationError
from atomesh.testing.fake_openai_server import (
    CUT,
    FakeOpenAIServer,
    Script,
    chat_answer,
    frame,
    refusal,
    text_answer,
    text_frame,
)

GOOD = text_answer(["a", "b", "c"], prompt=10)


def run(
    server: FakeOpenAIServer, *, count: int = 3, warmups: int = 1, **sender: Any
) -> tuple[Outcome, list[str]]:
    """What came of it, and what was heard of each request as it ended."""
    clock = MonotonicClock()
    heard: list[str] = []
    requests = plan_synthetic(SyntheticTraffic(count, 10, 20), np.random.default_rng(0))
    job = Benchmark(requests, 1, Objectives({"ttft": 60.0}), warmups)

    def hear(record: RequestRecord) -> None:
        heard.append("good" if record.failure is None else record.failure.kind)

    async def main() -> Outcome:
        async with server, OpenAIClient(server.url, clock=clock) as client:
            fields = {"writer": TokenIdWriter(400, 0), "model": "m", **sender}
            warm = await warm_up(job, Sender(client, clock, **fields))
            return await measure(job, warm, hear, asyncio.Event())

    return asyncio.run(main()), heard


def test_a_run_warms_up_measures_and_tells() -> None:
    server = FakeOpenAIServer(GOOD)

    outcome, heard = run(server, warmups=2)

    assert heard == ["good", "good", "good"]
    assert (outcome.figures.completed, outcome.figures.output_tokens, outcome.figures.input_tokens) == (
        3,
        9,
        30,
    )
    assert outcome.figures.goodput == pytest.approx(outcome.figures.request_throughput)
    assert outcome.notices == ()
    assert server.paths == ["/v1/completions"] * 5
    assert [body["max_tokens"] for body in server.bodies] == [16, 16, 20, 20, 20]
    assert [len(body["prompt"]) for body in server.bodies] == [10] * 5


def test_failures_are_counted_and_never_a_success() -> None:
    error = frame({"error": {"message": "lost", "code": 503}}, event="error")
    server = FakeOpenAIServer(
        GOOD,
        refusal(503, "full"),
        Script([text_frame("a"), error, CUT]),
        Script([text_frame("a"), CUT]),
        GOOD,
    )

    outcome, heard = run(server, count=4)

    assert heard == ["HTTP 503", "error frame 503", "cut stream", "good"]
    assert (outcome.figures.completed, outcome.figures.failed) == (1, 3)
    assert outcome.figures.output_tokens == 3


def test_what_the_server_refuses_is_not_asked_again_and_is_said() -> None:
    server = FakeOpenAIServer(
        refusal(400, "unknown field", param="stream_options.continuous_usage_stats"),
        refusal(400, "ignore_eos is not permitted"),
        GOOD,
    )

    outcome, _ = run(server, count=1)

    assert outcome.figures.completed == 1
    assert outcome.notices == ("the server refuses ignore_eos: answers may be shorter than asked",)
    assert server.bodies[-1]["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in server.bodies[-1]


def test_a_server_that_refuses_everything_ends_the_run_with_its_own_words() -> None:
    with pytest.raises(ConfigurationError, match="fails on the first request: HTTP 400: no such token"):
        run(FakeOpenAIServer(refusal(400, "no such token")))


def test_chat_is_asked_with_words() -> None:
    server = FakeOpenAIServer(chat_answer(["a", "b"], prompt=14))

    outcome, _ = run(server, count=1, endpoint="chat", writer=WordWriter(0))

    assert server.paths == ["/v1/chat/completions"] * 2
    (message,) = server.bodies[-1]["messages"]
    assert message["role"] == "user"
    assert len(message["content"].split(" ")) == 10
    assert outcome.figures.output_tokens == 2


def choose(server: FakeOpenAIServer, wanted: str | None = None, **options: Any) -> tuple[str, list[str]]:
    said: list[str] = []

    async def main() -> str:
        async with server, OpenAIClient(server.url) as client:
            return await choose_model(client, wanted, on_wait=said.append, **options)

    return asyncio.run(main()), said


def test_the_first_listed_model_is_taken_unless_one_is_wanted() -> None:
    assert choose(FakeOpenAIServer(models=["a", "b"])) == ("a", [])
    assert choose(FakeOpenAIServer(models=["a", "b"]), "c") == ("c", [])


def test_a_starting_server_is_waited_for_after_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomesh.bench.readiness.POLL_S", 0.0)
    server = FakeOpenAIServer(models=["a"])
    server.models_scripts = [refusal(503, "starting")] * 3

    model, said = choose(server)

    assert model == "a"
    assert len(said) == 1
    assert "is starting" in said[0]


def test_patience_ends() -> None:
    server = FakeOpenAIServer()
    server.models_scripts = [refusal(503, "starting")] * 2

    with pytest.raises(ConfigurationError, match=r"still starting after 0\.01 s"):
        choose(server, patience_s=0.01)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (refusal(401, "who are you"), "refuses the API key"),
        (refusal(500, "broken"), "cannot list its models: HTTP 500: broken"),
        (Script([b"hello"], content_type="text/plain"), "no OpenAI-compatible server answers"),
        (Script([b'{"data": []}'], content_type="application/json"), "name one with --model"),
    ],
)
def test_what_is_wrong_with_the_server_comes_with_a_remedy(script: Script, words: str) -> None:
    server = FakeOpenAIServer()
    server.models_scripts = [script]

    with pytest.raises(ConfigurationError, match=words):
        choose(server)


def test_a_server_without_a_list_of_models_is_good_for_a_named_one() -> None:
    server = FakeOpenAIServer()
    server.models_scripts = [refusal(404, "no such route")]

    assert choose(server, "m") == ("m", [])


def test_a_server_that_is_not_there_is_told_how_to_start() -> None:
    async def main() -> None:
        async with FakeOpenAIServer() as server:
            url = server.url
        async with OpenAIClient(url) as client:
            await choose_model(client, None, on_wait=lambda _: None)

    with pytest.raises(ConfigurationError, match="start one with `atomesh serve`"):
        asyncio.run(main())
