from pathlib import Path

import pytest
from cyclopts import App

from atomesh.cli.environment import api_keys
from atomesh.cli.flags import (
    ENGINE_DEFAULTS,
    GATEWAY_DEFAULTS,
    PROCESS_DEFAULTS,
    EngineFlags,
    GatewayFlags,
    ProcessFlags,
    to_argv,
)
from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError


def parse(*words: str) -> tuple[EngineFlags, GatewayFlags, ProcessFlags]:
    app = App(result_action="return_value")

    @app.default
    def command(
        *,
        engine: EngineFlags = ENGINE_DEFAULTS,
        gateway: GatewayFlags = GATEWAY_DEFAULTS,
        process: ProcessFlags = PROCESS_DEFAULTS,
    ) -> tuple[EngineFlags, GatewayFlags, ProcessFlags]:
        return engine, gateway, process

    parsed: tuple[EngineFlags, GatewayFlags, ProcessFlags] = app(words)
    return parsed


def test_defaults_need_no_words() -> None:
    assert to_argv(EngineFlags()) + to_argv(GatewayFlags()) + to_argv(ProcessFlags()) == []


def test_what_is_handed_on_is_what_was_given() -> None:
    engine = EngineFlags(
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=3,
        block_size=16,
        kv_memory=2**30,
        scheduling_policy="priority",
        prefix_cache=False,
        chunked_prefill=False,
        kv_lease=1.5,
        threads=2,
    )
    gateway = GatewayFlags(
        chat_template=Path("a template.jinja"),
        reasoning_parser="harmony",
        tool_call_parser="kimi_k2",
        cors_origin=("https://a.example", "https://b.example"),
        max_body=2**20,
        response_store=Path("responses.db"),
        response_store_size=2**30,
        drain_timeout=0.5,
        require_disaggregation=True,
        policy=("session", "model=a/b,prefill=prefix_hash,decode=random"),
        on_transfer_failure="fail",
    )
    process = ProcessFlags(secret_file=Path("/s"), log_level="info", enable_faults=True)
    assert parse(*to_argv(engine), *to_argv(gateway), *to_argv(process)) == (engine, gateway, process)


def test_sizes_are_read_as_people_write_them() -> None:
    engine, gateway, _ = parse("--kv-memory", "2GiB", "--max-body=1MiB")
    assert (engine.kv_memory, gateway.max_body) == (2**31, 2**20)


def test_flags_become_the_engines_options() -> None:
    assert EngineFlags().to_options(threads=4) == EngineOptions(threads=4)
    with pytest.raises(ConfigurationError, match="max_num_seqs is 0"):
        EngineFlags(max_num_seqs=0).to_options(threads=1)


def test_api_keys_come_from_flags_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMESH_API_KEYS", "b, c, ,a\n")
    assert api_keys(("a",)) == ("a", "b", "c")


@pytest.mark.parametrize("key", ["", "a,b", "ä", "a\nb"])
def test_a_key_that_could_not_be_handed_on_is_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="--api-key"):
        api_keys((key,))


@pytest.mark.parametrize("seconds", ["-1", "0", "0.05", "nan", "inf", "86401"])
def test_a_lease_is_neither_over_at_once_nor_endless(seconds: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"--kv-lease is {seconds} s; it must lie between 0.1 and 86400"
    ):
        parse(f"--kv-lease={seconds}")


def test_a_body_has_room_for_a_request() -> None:
    with pytest.raises(ConfigurationError, match="--max-body is 1023 bytes; it must be at least 1KiB"):
        parse("--max-body=1023")
    assert parse("--max-body=1KiB")[1].max_body == 1024


def test_a_reasoning_parser_is_one_that_there_is() -> None:
    with pytest.raises(ConfigurationError, match="--reasoning-parser is 'thoughts'; it must be one of"):
        parse("--reasoning-parser=thoughts")
    assert parse("--reasoning-parser=none")[1].reasoning_parser == "none"


def test_a_tool_call_parser_is_one_that_there_is() -> None:
    with pytest.raises(
        ConfigurationError, match="--tool-call-parser is 'pens'; it must be one of deepseek_v3"
    ):
        parse("--tool-call-parser=pens")
    assert parse("--tool-call-parser=mistral")[1].tool_call_parser == "mistral"


def test_a_store_has_room_for_a_response() -> None:
    refusal = "--response-store-size is 1048575 bytes; it must be at least 1MiB"
    with pytest.raises(ConfigurationError, match=refusal):
        parse("--response-store-size=1048575")
    assert parse("--response-store-size=1MiB")[1].response_store_size == 2**20


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "86401"])
def test_a_time_for_draining_is_neither_negative_nor_endless(seconds: str) -> None:
    with pytest.raises(ConfigurationError, match=f"--drain-timeout is {seconds} s"):
        parse(f"--drain-timeout={seconds}")
