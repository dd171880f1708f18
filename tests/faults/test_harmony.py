"""GPT-OSS's format on two workers: an answer's form and required calls, after an analysis that is limited."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from atomesh.testing.harmony_model import END, MESSAGE, START, write_harmony_model
from atomesh.testing.pd_bench import ONE_AND_ONE, PDBench, pd_bench

ASK = [{"role": "user", "content": "One two three four five six seven eight nine ten. " * 6}]
PARAMETERS = {
    "type": "object",
    "properties": {"q": {"type": "boolean"}},
    "required": ["q"],
    "additionalProperties": False,
}
FIND = {"type": "function", "function": {"name": "find", "parameters": PARAMETERS}}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    model = write_harmony_model(tmp_path_factory.mktemp("model") / "oss")
    with pd_bench(model, tmp_path_factory.mktemp("home"), ONE_AND_ONE) as bench:
        yield bench


def ask(bench: PDBench, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice, and the usage's details."""
    body = {
        "model": bench.served.model,
        "messages": ASK,
        "seed": 3,
        "max_tokens": 120,
        "return_token_ids": True,
    }
    answer = bench.served.request("POST", "/v1/chat/completions", {**body, **fields})
    assert answer.status == 200, answer.body
    return answer.body["choices"][0], answer.body["usage"]["completion_tokens_details"]


@pytest.mark.parametrize("budget", [0, 1, 6])
def test_a8_the_final_message_has_the_form_that_is_asked_for(apart: PDBench, budget: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}
    choice, details = ask(apart, thinking_token_budget=budget, response_format=form)
    assert sorted(json.loads(choice["message"]["content"])) == ["q"]
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"].index(END) - choice["token_ids"].index(MESSAGE) - 1 == budget
    assert details == {"reasoning_tokens": budget}


@pytest.mark.parametrize("budget", [0, 6])
def test_a8_a_required_call_follows_the_analysis(apart: PDBench, budget: int) -> None:
    choice, details = ask(apart, thinking_token_budget=budget, tools=[FIND], tool_choice="required")
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "find"
    assert sorted(json.loads(call["function"]["arguments"])) == ["q"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    ids = choice["token_ids"]
    assert ids[ids.index(END) + 1] == START
    assert details == {"reasoning_tokens": budget}


def test_a8_no_effort_is_an_answer_without_analysis(apart: PDBench) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": PARAMETERS}}
    choice, details = ask(apart, reasoning_effort="none", response_format=form)
    assert "reasoning" not in choice["message"]
    assert sorted(json.loads(choice["message"]["content"])) == ["q"]
    assert details == {"reasoning_tokens": 0}


def test_a8_a_stream_calls_as_a_whole_answer_does(apart: PDBench) -> None:
    fields = {"thinking_token_budget": 6, "tools": [FIND], "tool_choice": "required"}
    whole, _ = ask(apart, **fields)
    with OpenAI(base_url=f"http://127.0.0.1:{apart.served.port}/v1", api_key="none") as client:
        chunks = client.chat.completions.create(
            model=apart.served.model,
            messages=ASK,  # type: ignore[arg-type]
            seed=3,
            max_tokens=120,
            stream=True,
            extra_body=fields,
        )
        deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call for delta in deltas for call in delta.tool_calls or []]
    arguments = "".join(call.function.arguments or "" for call in calls if call.function)
    assert arguments == whole["message"]["tool_calls"][0]["function"]["arguments"]
    reasoning = "".join(delta.model_dump().get("reasoning") or "" for delta in deltas)
    assert reasoning == whole["message"]["reasoning"]
