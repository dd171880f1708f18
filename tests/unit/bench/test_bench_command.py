import json
import math
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from atomesh.cli.bench import bench
from atomesh.cli.bench_options import LoadOptions, RequestOptions, ServerOptions, make_plan
from atomesh.errors import ConfigurationError
from atomesh.testing.fake_openai_server import HOLD, FakeOpenAIServer, Script, refusal, text_answer

Serve = Callable[..., FakeOpenAIServer]
GOOD = text_answer(["a", "b", "c"], prompt=256)


def run(*arguments: str) -> Any:
    app = App("bench", result_action="return_value")
    app.default(bench)
    return app(list(arguments))


def test_a_newcomer_gets_a_report(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(GOOD)

    assert run("--url", server.url) == 0

    out = capsys.readouterr().out
    assert "Successful requests:                     32\n" in out
    assert "Maximum request concurrency:             4\n" in out
    assert "Total generated tokens:                  96\n" in out
    assert f"fake-model at {server.url} (completions): random lengths, 256 tokens in, 64 out" in out
    assert len(server.bodies) == 33
    assert {body["model"] for body in server.bodies} == {"fake-model"}


def test_json_is_one_document_on_stdout(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--json", "--per-request", "-n", "2", "--goodput", "ttft:60000", "tpot:60000", "-r", "inf"]

    assert run("--url", serve(GOOD).url, *arguments) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["completed"] == 2
    assert document["request_goodput"] == document["request_throughput"]
    assert document["goodput_objectives_ms"] == {"ttft": 60_000, "tpot": 60_000}
    assert document["max_concurrency"] is None
    assert [request["output_tokens"] for request in document["requests"]] == [3, 3]


def test_a_run_in_which_nothing_succeeds_exits_with_one(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--url", serve(GOOD, refusal(503, "full")).url, "-n", "2") == 1

    assert "  2 × HTTP 503: full\n" in capsys.readouterr().out


def test_ctrl_c_reports_what_is_done(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(GOOD, GOOD, Script([b": interrupt me\n\n", HOLD]))
    server.on_hold = lambda: os.kill(os.getpid(), signal.SIGINT)

    assert run("--url", server.url, "-n", "5", "-c", "1") == 0

    out = capsys.readouterr().out
    assert "Successful requests:                     1\n" in out
    assert "Unfinished requests (interrupted):       4\n" in out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_the_load_leaves_at_once(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(Script([HOLD]))
    server.on_hold = lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    assert run("--url", server.url) == 130
    assert capsys.readouterr().out == ""


def plan(
    load: LoadOptions, requests: RequestOptions | None = None, server: ServerOptions | None = None
) -> Any:
    return make_plan(server or ServerOptions(), requests or RequestOptions(), load)


def test_pace_is_a_closed_loop_of_four_unless_another_is_asked_for() -> None:
    assert (plan(LoadOptions()).concurrency, plan(LoadOptions()).rate) == (4, None)
    assert plan(LoadOptions(concurrency=9)).concurrency == 9
    assert plan(LoadOptions(request_rate=math.inf)).concurrency is None
    both = plan(LoadOptions(request_rate=2.0, concurrency=3))
    assert (both.rate, both.concurrency) == (2.0, 3)


def test_a_trace_is_planned_in_its_own_time_or_at_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
        '{"timestamp": 8000, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]}\n'
    )

    replayed = plan(LoadOptions(trace=path, trace_speed=2.0))
    timed = plan(LoadOptions(trace=path, request_rate=1.0))

    assert [request.at_s for request in replayed.requests] == [0.0, 4.0]
    assert (replayed.concurrency, replayed.words) == (None, "trace trace.jsonl")
    assert timed.requests[-1].at_s == pytest.approx(2.0)
    assert plan(LoadOptions(trace=path), RequestOptions(num_prompts=1)).requests[0].input_tokens == 600


@pytest.mark.parametrize(
    ("load", "requests", "server", "words"),
    [
        (LoadOptions(concurrency=0), RequestOptions(), ServerOptions(), "--concurrency is 0"),
        (LoadOptions(warmups=0), RequestOptions(), ServerOptions(), "--warmups is 0"),
        (LoadOptions(), RequestOptions(num_prompts=0), ServerOptions(), "number of prompts is 0"),
        (
            LoadOptions(),
            RequestOptions(prompts="ids"),
            ServerOptions(endpoint="chat"),
            "a chat message is text",
        ),
    ],
)
def test_senseless_flags_are_refused(
    load: LoadOptions, requests: RequestOptions, server: ServerOptions, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        plan(load, requests, server)
