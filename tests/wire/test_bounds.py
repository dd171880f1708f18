"""What a request may come to on its way to the workers: its prompts times the parameters of each."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from atomesh.frontend.options import FrontendOptions
from atomesh.testing.raw_http import send
from atomesh.testing.wire import ScriptedWire

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
LIMIT = 2 * 2**20  # twice the scripted server's longest body
IDS = list(range(250))


def complete(scripted: ScriptedWire, prompts: int, **fields: Any) -> Any:
    return send(scripted.url, "POST", TEXT, {"prompt": ["a"] * prompts, "max_tokens": 1, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": dict.fromkeys(map(str, IDS), 1.5)},
        {"bad_words": ["x" * 100 + chr(97 + i) for i in range(26)]},
        {"allowed_token_ids": IDS, "stop_token_ids": IDS, "bad_words": ["x" * 1024, "y" * 1024]},
        {"cache_salt": "s" * 10_000},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_many_prompts_times_long_lists_are_refused(scripted: ScriptedWire, fields: dict[str, Any]) -> None:
    body = len(json.dumps(fields))
    tracemalloc.start()
    response = complete(scripted, 1024, **fields)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert response.status == 400
    error = response.error
    assert (error["type"], error["param"]) == ("invalid_request_error", "prompt")
    assert error["message"].startswith("1024 prompts, 2048 tokens, each with its own copy of ")
    assert f"the limit is {LIMIT}: send fewer prompts at once, or shorter bad_words" in error["message"]
    assert scripted.service.requests == []
    assert peak < 20 * body + 2**20  # not 1,024 times


@pytest.mark.parametrize("prompts", [1, 100])
def test_what_stays_below_the_limit_is_served_and_is_below_it(scripted: ScriptedWire, prompts: int) -> None:
    fields = {"logit_bias": dict.fromkeys(map(str, IDS), 1.5), "bad_words": ["x" * 1024], "cache_salt": "s"}
    assert complete(scripted, prompts, **fields).status == 200
    frames = [len(msgspec.msgpack.encode(request)) for request in scripted.service.requests]
    assert len(frames) == prompts
    assert LIMIT / 10 * (prompts / 100) < sum(frames) < LIMIT


def test_long_prompts_alone_count_too(scripted: ScriptedWire) -> None:
    fields = {"prompt": [[200] * 500] * 400, "max_tokens": 1, "cache_salt": "s" * 4000}
    response = send(scripted.url, "POST", TEXT, fields)
    assert response.status == 400
    assert "400 prompts, 200000 tokens, each" in response.error["message"]


def test_truncated_prompts_count_as_they_go_out(scripted: ScriptedWire) -> None:
    fields = {"prompt": [[200] * 500] * 400, "max_tokens": 1, "cache_salt": "s" * 4000}
    response = send(scripted.url, "POST", TEXT, {**fields, "truncate_prompt_tokens": 1})
    assert response.status == 200


def test_a_prompt_beyond_the_context_is_told_so(scripted: ScriptedWire) -> None:
    response = send(scripted.url, "POST", TEXT, {"prompt": [1] * 300_000, "max_tokens": 1})
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")


def test_choices_of_one_chat_are_no_frames(scripted: ScriptedWire) -> None:
    fields = {"messages": [{"role": "user", "content": "a"}], "n": 128, "temperature": 1, "max_tokens": 1}
    response = send(scripted.url, "POST", CHAT, {**fields, "cache_salt": "s" * 500_000})
    assert response.status == 200
    assert len(scripted.service.requests) == 1


def test_the_limit_is_twice_the_longest_body() -> None:
    assert FrontendOptions().max_worker_bytes == 32 * 2**20
    assert FrontendOptions(max_body_bytes=2**20).max_worker_bytes == LIMIT
