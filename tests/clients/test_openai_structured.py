"""The openai client's helpers that parse answers into types, and tool calls, on both shapes."""

import json
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from atomesh.testing.wire import Wire

TALK = [{"role": "user", "content": "Paris is the capital of France. Tell me about Paris."}]


ONE_CALL = {"tool_choice": "required", "parallel_tool_calls": False}


class City(BaseModel):
    """Of bounded length however a small model goes on."""

    is_capital: bool
    continent: Literal["Africa", "America", "Asia", "Europe"]
    letters: int


class Turn(BaseModel):
    """Turn the lamp on or off."""

    is_on: bool
    room: Literal["kitchen", "attic"]


def asked(stack: Wire, **fields: Any) -> dict[str, Any]:
    return {"model": stack.model, "messages": TALK, "temperature": 0, "max_tokens": 60, **fields}


def test_parse_gives_an_object(stack: Wire) -> None:
    answer = stack.client.chat.completions.parse(**asked(stack, response_format=City))
    (choice,) = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.refusal is None
    assert isinstance(choice.message.parsed, City)
    assert json.loads(choice.message.content) == choice.message.parsed.model_dump()


def test_the_stream_helper_parses_the_same_object(stack: Wire) -> None:
    whole = stack.client.chat.completions.parse(**asked(stack, response_format=City))
    with stack.client.chat.completions.stream(**asked(stack, response_format=City)) as stream:
        snapshots = [event.parsed for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert any(isinstance(snapshot, dict) for snapshot in snapshots)


def test_an_answer_cut_by_its_length_is_not_parsed(stack: Wire) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        stack.client.chat.completions.parse(**asked(stack, response_format=City, max_tokens=2))


def test_every_choice_is_parsed(stack: Wire) -> None:
    answer = stack.client.chat.completions.parse(
        **asked(stack, response_format=City, n=3, temperature=1.0, seed=3)
    )
    assert all(isinstance(choice.message.parsed, City) for choice in answer.choices)


def test_a_required_call_is_parsed(stack: Wire) -> None:
    answer = stack.client.chat.completions.parse(
        **asked(stack, tools=[openai.pydantic_function_tool(Turn)], **ONE_CALL)
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "Turn")
    assert isinstance(call.function.parsed_arguments, Turn)


def test_the_stream_helper_parses_a_required_call(stack: Wire) -> None:
    fields = {"tools": [openai.pydantic_function_tool(Turn)], **ONE_CALL}
    whole = stack.client.chat.completions.parse(**asked(stack, **fields)).choices[0]
    with stack.client.chat.completions.stream(**asked(stack, **fields)) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert [event.parsed_arguments for event in done] == [
        call.function.parsed_arguments for call in final.message.tool_calls
    ]
    assert [call.function.arguments for call in final.message.tool_calls] == [
        call.function.arguments for call in whole.message.tool_calls
    ]


def test_a_named_call_and_its_result_go_on(stack: Wire) -> None:
    fields = {"tools": [openai.pydantic_function_tool(Turn), openai.pydantic_function_tool(City)]}
    named = {"type": "function", "function": {"name": "Turn"}}
    first = stack.client.chat.completions.create(
        **asked(stack, **fields, tool_choice=named, parallel_tool_calls=False)
    )
    (call,) = first.choices[0].message.tool_calls
    assert call.function.name == "Turn"
    Turn.model_validate_json(call.function.arguments)
    talk = [
        *TALK,
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"ok": true}'},
    ]
    second = stack.client.chat.completions.create(
        **asked(stack, messages=talk, **fields, tool_choice="none", max_tokens=5)
    )
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].message.content


def test_responses_are_parsed(stack: Wire) -> None:
    answer = stack.client.responses.parse(
        model=stack.model, input=TALK[0]["content"], text_format=City, temperature=0, max_output_tokens=60
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, City)


def test_responses_stream_and_go_on(stack: Wire) -> None:
    fields = {"model": stack.model, "temperature": 0, "max_output_tokens": 60}
    with stack.client.responses.stream(input="Tell me about Paris.", text_format=City, **fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        first = stream.get_final_response()
    assert first.output_text == "".join(deltas)
    assert isinstance(first.output_parsed, City)
    second = stack.client.responses.create(input="And again?", previous_response_id=first.id, **fields)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
