from typing import Any

import msgspec
import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.responses.request import ResponsesRequest, check_request
from atomesh.frontend.openai.responses.translation import in_words_of_responses, to_chat, translate_place

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> dict[str, Any]:
    """What of the chat's request says anything, but for its messages."""
    request = to_chat(msgspec.convert(fields, ResponsesRequest), MESSAGES)
    told = msgspec.to_builtins(request)
    return {name: value for name, value in told.items() if value is not None and name != "messages"}


def test_fields_of_the_same_name_are_handed_on() -> None:
    fields = {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "top_k": 5,
        "stop": ["x"],
        "logit_bias": {5: 1.5},
        "priority": 2,
        "cache_salt": "s",
        "prompt_cache_key": "k",
        "user": "u",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"thinking": True},
    }
    assert chat(**fields) == fields


def test_what_only_responses_have_is_left_behind() -> None:
    fields = {
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "flex",
        "safety_identifier": "x",
        "stream": True,
    }
    assert chat(**fields) == {}


def test_bounds_and_logprobs_have_the_chat_s_names() -> None:
    assert chat(max_output_tokens=9) == {"max_completion_tokens": 9}
    assert chat(top_logprobs=3) == {"logprobs": True, "top_logprobs": 3}
    assert chat(include=["message.output_text.logprobs"]) == {"logprobs": True}


def test_a_tool_and_a_choice_have_the_chat_s_shape() -> None:
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": True}
    named = {"type": "function", "name": "f"}
    asked = to_chat(msgspec.convert({"tools": [tool], "tool_choice": named}, ResponsesRequest), MESSAGES)
    function = {"name": "f", "description": "d", "parameters": parameters, "strict": True}
    [found] = msgspec.to_builtins(asked.tools)
    assert (found["type"], found["function"]) == ("function", function)
    assert msgspec.to_builtins(asked.tool_choice) == {"type": "function", "function": {"name": "f"}}
    assert to_chat(ResponsesRequest(tool_choice="required"), MESSAGES).tool_choice == "required"


def test_allowed_tools_have_the_chat_s_shape() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    asked = to_chat(msgspec.convert({"tool_choice": choice}, ResponsesRequest), MESSAGES)
    told = msgspec.to_builtins(asked.tool_choice)
    assert told["allowed_tools"]["mode"] == "required"
    assert [tool["function"]["name"] for tool in told["allowed_tools"]["tools"]] == ["f"]


def test_a_format_has_the_chat_s_shape() -> None:
    schema = {"type": "object"}
    flat = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    asked = to_chat(msgspec.convert({"text": {"format": flat}}, ResponsesRequest), MESSAGES)
    told = msgspec.to_builtins(asked.response_format)
    assert told["type"] == "json_schema"
    assert {name: value for name, value in told["json_schema"].items() if value is not None} == {
        "name": "n",
        "schema": schema,
        "strict": True,
    }
    plain = to_chat(
        msgspec.convert({"text": {"format": {"type": "json_object"}}}, ResponsesRequest), MESSAGES
    )
    assert msgspec.to_builtins(plain.response_format)["type"] == "json_object"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"tools": [{"type": "web_search"}]},
            "tools[0].type",
            "'web_search', a tool that this server does not",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing"),
        ({"tool_choice": "any"}, "tool_choice", "one of none, auto, required"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "'file_search'"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name", "missing"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode", "auto or required"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0]",
            "no function",
        ),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "text, json_object or json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "missing"),
    ],
)
def test_what_cannot_be_translated_is_told_with_its_place(fields: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "send instructions and input"),
        ({"messages": []}, "messages", "send them as input"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"truncation": "middle"}, "truncation", "one of auto, disabled"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "one of low, medium, high"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "one of auto, concise, detailed"),
        ({"include": ["reasoning.encrypted_content", "all"]}, "include[1]", "'all'"),
        ({"stream_options": {}}, "stream_options", "only allowed with stream: true"),
        ({"background": True, "store": False}, "background", "needs store: true"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "17 keys; the limit is 16"),
        ({"metadata": {"k" * 65: ""}}, f"metadata.{'k' * 64}", "its key has 65 characters; the limit is 64"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "its value has 513 characters; the limit is 512"),
    ],
)
def test_what_is_wrong_with_a_field_is_told_with_its_place(fields: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_request(msgspec.convert(fields, ResponsesRequest))
    assert caught.value.param == param
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("chats", "ours"),
    [
        ("messages", "input"),
        ("messages[3].content", "input"),
        ("prompt", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema.properties.a", "text.format.schema.properties.a"),
        ("tools[12].function.parameters.type", "tools[12].parameters.type"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("tool_choice.allowed_tools.tools[0]", "tool_choice.tools[0]"),
        ("temperature", "temperature"),
        ("prompt_cache_key", "prompt_cache_key"),
    ],
)
def test_a_chat_s_place_is_told_as_the_response_s(chats: str, ours: str) -> None:
    assert translate_place(chats) == ours
    with pytest.raises(InvalidRequestError) as caught, in_words_of_responses():
        raise InvalidRequestError(f"{chats} is wrong", param=chats)
    assert (caught.value.message, caught.value.param) == (f"{ours} is wrong", ours)


def test_a_remedy_names_our_fields_too() -> None:
    with pytest.raises(InvalidRequestError) as caught, in_words_of_responses():
        raise InvalidRequestError("send reasoning_effort 'none' or fewer max_tokens; messages stay")
    assert caught.value.message == "send reasoning.effort 'none' or fewer max_output_tokens; messages stay"
