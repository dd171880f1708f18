"""The default model, whose own template knows no tools, calls them when it must, on both shapes."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from atomesh.testing.letters_server import make_client

SHAPES = {"unified": "default_server", "pair": "default_pair"}
ASK: Any = [{"role": "user", "content": "What is the weather in Paris, and what time is it there?"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
CLOCK: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"enum": ["CET", "UTC"]}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": f"It can {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


@pytest.fixture(params=SHAPES)
def client(request: pytest.FixtureRequest) -> Any:
    served = request.getfixturevalue(SHAPES[request.param])
    with make_client(served.url) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": "", "messages": ASK, "tools": TOOLS, "max_tokens": 300, "temperature": 0, **fields}
    return client.chat.completions.create(**asked)


def check(calls: list[tuple[str, str]]) -> None:
    assert calls
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def joined(chunks: Any) -> tuple[list[tuple[str, str]], list[str]]:
    """The calls of one streamed choice, and its finish reasons."""
    calls: list[list[str]] = []
    reasons: list[str] = []
    for chunk in chunks:
        [choice] = chunk.choices
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments
    return [(name, arguments) for name, arguments in calls], reasons


def calls_of(answer: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls]


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "seeded"])
def test_a_call_that_must_be_made_validates_streamed_and_not(client: openai.OpenAI, fields: Any) -> None:
    asked = {"tool_choice": "required", "parallel_tool_calls": False, **fields}
    whole = ask(client, **asked)
    assert whole.choices[0].finish_reason == "tool_calls"
    assert whole.choices[0].message.content is None
    check(calls_of(whole))
    assert joined(ask(client, stream=True, **asked)) == (calls_of(whole), ["tool_calls"])


def test_the_named_function_is_called(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    [(name, arguments)] = calls_of(ask(client, tool_choice=choice))
    assert name == "get_time"
    check([(name, arguments)])


def test_each_of_several_choices_calls(client: openai.OpenAI) -> None:
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, n=3, temperature=1.0, seed=3)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        check([(call.function.name, call.function.arguments) for call in choice.message.tool_calls])


def test_a_conversation_goes_on_after_a_call(client: openai.OpenAI) -> None:
    message = ask(client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    answer = ask(client, messages=[*ASK, message, *results], max_tokens=8, tool_choice="none")
    assert answer.usage.completion_tokens >= 1
    assert answer.choices[0].message.tool_calls is None


def test_a_schema_that_cannot_be_obeyed_is_refused_before_anything_runs(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "unknownKeyword": 1, "pattern": "(?=x)"}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(openai.BadRequestError, match="tools cannot be obeyed"):
        ask(client, tools=tools, tool_choice="required")
