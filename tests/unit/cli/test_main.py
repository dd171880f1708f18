import json
from pathlib import Path

import pytest

from atomesh.cli import main as cli
from atomesh.errors import ConfigurationError


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["atomesh", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_models_as_json_is_one_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATOMESH_HOME", str(tmp_path / "home"))
    assert run(monkeypatch, "models", "--json") == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["home"] == str(tmp_path / "home")
    [default] = [model for model in document["models"] if model["default"]]
    assert (default["name"], default["path"]) == ("smollm2-135m-instruct", None)
    assert captured.err == ""


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_explains_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(monkeypatch, command, "--help") == 0
    assert f"Usage: atomesh {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_flags_of_the_engine_have_defaults_in_their_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run(monkeypatch, command, "--help")
    text = capsys.readouterr().out
    for flag in ("--max-model-len", "--kv-memory", "--max-num-seqs", "--block-size", "--dtype", "--threads"):
        assert flag in text
    assert "[default: 64]" in text
    assert "--kv-memory SIZE" in text
    assert "()" not in text
    assert "supervisor" not in text


def test_an_error_of_configuration_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_words: list[str]) -> None:
        raise ConfigurationError("the flag is wrong; write another")

    monkeypatch.setattr(cli, "app", refuse)
    assert run(monkeypatch) == 78
    assert capsys.readouterr().err == "atomesh: the flag is wrong; write another\n"


@pytest.mark.parametrize("command", [("serve",), ("gateway", "--worker=127.0.0.1:9")])
def test_a_chat_template_is_read_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert run(monkeypatch, *command, "--port=0", "--chat-template=/nonexistent") == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("atomesh: --chat-template /nonexistent cannot be read")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("message", "param", "said"),
    [
        ("max_model_len is 9; lower max_model_len or raise kv_memory", "max_model_len",
         "--max-model-len is 9; lower --max-model-len or raise --kv-memory"),
        ("kv_memory is 7 bytes", "kv_memory", "--kv-memory is 7 bytes"),
        ("policy is /models/kv_memory.gguf", "policy", "--policy is /models/kv_memory.gguf"),
        ("config.json: dtype is 7", None, "config.json: dtype is 7"),
    ],
)  # fmt: skip
def test_options_are_named_as_on_the_command_line(message: str, param: str | None, said: str) -> None:
    assert cli.in_flags(ConfigurationError(message, param=param)) == said


def test_the_help_shows_sizes_as_people_write_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run(monkeypatch, "serve", "--help")
    assert "[default: 16MiB]" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("serve", "--model", "x"), ("worker", "--model=x")])
def test_the_model_is_no_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(monkeypatch, *words) == 78
    assert f"atomesh {words[0]} MODEL" in capsys.readouterr().err
