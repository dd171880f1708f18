import builtins
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atomesh.cli.chat import chat
from atomesh.errors import ConfigurationError
from atomesh.testing.fake_openai_server import (
    HOLD,
    FakeOpenAIServer,
    Script,
    chat_answer,
    chat_frame,
    frame,
    refusal,
)

Serve = Callable[..., FakeOpenAIServer]
Say = Callable[..., None]
GOOD = chat_answer(["Good ", "day"], prompt=9)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """What the user types, a line at a time, and then Ctrl-D; an exception is raised in place of a line."""

    def script(*lines: str | type[BaseException]) -> None:
        left: Iterator[str | type[BaseException]] = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)

    return script


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


def test_answers_go_to_stdout_and_everything_else_to_stderr(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(GOOD)
    say("  hello ")

    assert chat(url=server.url) == 0

    out, err = capsys.readouterr()
    assert out == "Good day\n"
    assert f"fake-model at {server.url}" in err
    assert "2 tokens · " in err
    assert server.paths == ["/v1/chat/completions"]
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]


def test_the_conversation_is_remembered_and_can_be_reset(serve: Serve, say: Say) -> None:
    server = serve(GOOD)
    say("one", "two", "/reset", "three")

    chat(url=server.url, system="be brief", model="m", temperature=0.0, max_tokens=3)

    assert [roles(body) for body in server.bodies] == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]
    assert server.bodies[1]["messages"][2]["content"] == "Good day"
    assert (server.bodies[0]["model"], server.bodies[0]["max_tokens"]) == ("m", 3)


def test_the_system_message_can_be_set_and_shown(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(GOOD)
    say("/system", "/system be kind", "/system", "hello")

    chat(url=server.url)

    err = capsys.readouterr().err
    assert err.count("System message: none\n") == 1
    assert err.count("System message: be kind\n") == 2
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "be kind"}


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_quit_leaves(serve: Serve, say: Say, word: str) -> None:
    server = serve(GOOD)
    say(word, "hello")

    assert chat(url=server.url) == 0
    assert server.bodies == []


def test_unknown_commands_and_empty_lines_are_not_sent(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(GOOD)
    say("", "   ", "/dance", "/help")

    chat(url=server.url)

    err = capsys.readouterr().err
    assert "/dance is no command" in err
    assert "/system TEXT" in err
    assert server.bodies == []


def test_a_text_of_several_lines(serve: Serve, say: Say) -> None:
    server = serve(GOOD)
    say('"""one', "  two", 'three"""', '"""alone"""')

    chat(url=server.url)

    assert server.bodies[0]["messages"][-1]["content"] == "one\n  two\nthree"
    assert server.bodies[1]["messages"][-1]["content"] == "alone"


def test_ctrl_c_stops_the_answer_and_keeps_what_came(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(Script([chat_frame({"role": "assistant", "content": "Go"}), HOLD]), GOOD)
    server.on_hold = lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    say("one", "two")

    assert chat(url=server.url) == 0

    out, err = capsys.readouterr()
    assert out.endswith("Good day\n")
    assert "stopped" in err
    assert roles(server.bodies[1])[0] == "user"
    assert server.bodies[1]["messages"][-1]["content"] == "two"


def test_ctrl_c_at_the_prompt_drops_the_line(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    say(KeyboardInterrupt)

    assert chat(url=serve(GOOD).url) == 0
    assert "Ctrl-D or /quit leaves" in capsys.readouterr().err


def test_a_failed_answer_is_shown_and_forgotten(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(refusal(503, "no worker is ready"), GOOD)
    say("one", "two")

    assert chat(url=server.url) == 0

    assert "HTTP 503: no worker is ready" in capsys.readouterr().err
    assert roles(server.bodies[1]) == ["user"]


def test_an_answer_cut_by_an_error_frame_keeps_what_came(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    error = frame({"error": {"message": "lost", "code": 503}}, event="error")
    server = serve(Script([chat_frame({"role": "assistant", "content": "Go"}), error]), GOOD)
    say("one", "two")

    chat(url=server.url)

    assert capsys.readouterr().out == "Go\nGood day\n"
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": "Go"}


def test_a_full_context_comes_with_a_remedy(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    say("one")

    chat(url=serve(refusal(400, "maximum context length is 10 tokens")).url)

    assert "/reset makes room" in capsys.readouterr().err


def test_reasoning_stands_apart_and_is_not_remembered(
    serve: Serve, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    thinking = [chat_frame({"role": "assistant", "reasoning_content": "hm"}), *GOOD.steps[1:]]
    server = serve(Script(thinking), GOOD)
    say("one", "two")

    chat(url=server.url)

    assert capsys.readouterr().out.startswith("hm\n\nGood day\n")
    assert server.bodies[1]["messages"][1]["content"] == "Good day"


def test_without_a_server_it_says_how_to_start_one(serve: Serve, say: Say) -> None:
    say("hello")

    with pytest.raises(ConfigurationError, match="start one with `atomesh serve`"):
        chat(url="http://127.0.0.1:1")
