import json
import re
import runpy
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
        ("threads is /models/kv_memory.gguf", "threads", "--threads is /models/kv_memory.gguf"),
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


def flags_in_help(text: str) -> dict[str, str]:
    """What a help page that is wide enough says of each flag: one line."""
    lines = (line.strip("│* ") for line in text.splitlines())
    return {line.split()[0]: line for line in lines if line.startswith("--")}


SAYS_DEFAULT = re.compile(
    r"\[default: |by default|without (either|any)|repeat for several|\[required\]", re.I
)
SAYS_UNIT = re.compile(
    r"seconds|tokens|sequences|requests that wait|number of (workers|a core)|threads|port to|\bsize\b",
    re.IGNORECASE,
)
NUMBERS = {int, float, int | None, tuple[int, ...]}


@pytest.mark.parametrize("command", ["serve", "worker", "gateway"])
def test_every_flag_has_its_meaning_its_default_and_its_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    run(monkeypatch, command, "--help")
    told = flags_in_help(capsys.readouterr().out)
    shown = [
        argument
        for argument in cli.app[command].assemble_argument_collection()
        if argument.show and argument.name.startswith("--")
    ]
    assert len(shown) >= 15
    for argument in shown:
        line = told[argument.name]
        assert len(line.split()) >= 5, line
        assert SAYS_DEFAULT.search(line), line
        assert argument.hint not in NUMBERS or SAYS_UNIT.search(line), line


BAD_WORDS: list[tuple[str, int, str]] = [
    (
        "serve --prefill=0 --decode=1",
        78,
        "--prefill 0 --decode 1 leaves nobody to prefill: write --prefill 1, or --unified 1",
    ),
    (
        "serve --unified 0",
        78,
        "--unified 0 leaves nobody to prefill or decode: write --prefill 1 --decode 1, or --unified 1",
    ),
    ("serve --prefill -1", 78, "--prefill -1: no number of workers is negative; write 0 or more"),
    (
        "serve --prefill 2 --decode 2 --unified 100",
        78,
        "--prefill 2 --decode 2 --unified 100 makes 104 workers; the most is 64: ask for fewer",
    ),
    (
        "serve --prefill one",
        2,
        'Invalid value for --prefill: unable to convert "one" into int. See atomesh serve --help.',
    ),
    ("serve --prefil 1", 2, "Unknown option: --prefil. Did you mean --prefill? See atomesh serve --help."),
    (
        "serve --kv-transport=rdma",
        2,
        'Invalid value "rdma" for --kv-transport. Choose from: "auto", "shm", "tcp". '
        "See atomesh serve --help.",
    ),
    (
        "serve --device=cuda --prefill=1",
        78,
        "--prefill 1 --decode 1: KV on this device cannot be handed over yet; write --unified 2, or "
        "--device cpu",
    ),
    (
        "serve --device=cuda --kv-transport=shm",
        78,
        "--kv-transport is shm, and KV on this device cannot be handed over yet; leave --kv-transport out, "
        "or write --device cpu",
    ),
    ("serve --kv-lease=-1", 78, "--kv-lease is -1 s; it must lie between 0.1 and 86400 s, a day"),
    (
        "serve --kv-memory=lots",
        78,
        "--kv-memory: 'lots' is no amount of memory; write 2GiB, 512MiB or a number of bytes",
    ),
    ("serve --kv-memory 0", 78, "--kv-memory is 0; it must be at least 1"),
    ("serve --max-body=0", 78, "--max-body is 0 bytes; it must be at least 1KiB"),
    ("serve --drain-timeout=-1", 78, "--drain-timeout is -1 s; it must lie between 0 and 86400 s, a day"),
    ("serve --max-num-seqs=0", 78, "--max-num-seqs is 0; it must be at least 1"),
    ("serve --port=70000", 78, "--port is 70000; it must lie between 0 and 65535, 0 for any free one"),
    (
        "serve --host=",
        78,
        "--host is empty; write an address of this machine, or 0.0.0.0 for all that it has",
    ),
    (
        "worker --role=leader",
        2,
        'Invalid value "leader" for --role. Choose from: "prefill", "decode", "unified", "parked". '
        "See atomesh worker --help.",
    ),
    ("worker --kv-lease=0", 78, "--kv-lease is 0 s; it must lie between 0.1 and 86400 s, a day"),
    ("worker --listen=here", 78, "the address is 'here'; write HOST:PORT or unix:PATH"),
    (
        "worker --block-size=17",
        2,
        'Invalid value "17" for --block-size. Choose from: 16, 32. See atomesh worker --help.',
    ),
    (
        "gateway",
        78,
        "nobody would answer: name a worker with --worker, more with --workers-file, or",
    ),
    ("gateway --backend=http://h", 78, "--backend 'http://h': kind is ''; write kind=vllm|sglang|openai"),
    ("gateway --worker=there", 78, "the address is 'there'; write HOST:PORT or unix:PATH"),
    (
        "bake",
        2,
        'Unknown command "bake". Available commands: serve, chat, bench, models, explain, worker, gateway.',
    ),
]


@pytest.mark.parametrize(("words", "status", "message"), BAD_WORDS, ids=[words for words, _, _ in BAD_WORDS])
def test_what_cannot_be_is_one_line_with_value_limit_and_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, status: int, message: str
) -> None:
    monkeypatch.setattr("atomesh.cli.worker.end_on_sigterm", lambda: None)
    assert run(monkeypatch, *words.split()) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"atomesh: {message}")
    assert captured.err.count("\n") == 1


def test_a_core_that_is_not_ours_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atomesh.cli.worker.end_on_sigterm", lambda: None)
    assert run(monkeypatch, "worker", "--cores=100000") == 78
    assert capsys.readouterr().err.startswith("atomesh: --cores is 100000; it must be one of ")


def test_the_package_runs_as_the_console_script_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    by_name = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("atomesh", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out) == (0, by_name)
