"""Anthropic's requests as chat requests."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import InvalidRequestError
from atomesh.frontend.anthropic.messages_request import MessagesRequest, PromptRequest
from atomesh.frontend.anthropic.translate import to_chat_request, to_prompt
from atomesh.frontend.openai.chat_request import ChatMessage, ChatRequest, parse_messages
from atomesh.frontend.tool_calls.tools import FunctionDefinition, Tool

LINE = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=%s;"
WEATHER = {"name": "weather", "description": "Of a town", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Oslo"}}
CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town":"Oslo"}'},
}


def chat(**fields: Any) -> ChatRequest:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8} | fields
    return to_chat_request(msgspec.convert(asked, MessagesRequest))


def said(*messages: tuple[str, Any], **fields: Any) -> list[ChatMessage]:
    asked = [{"role": role, "content": content} for role, content in messages]
    return chat(messages=asked, **fields).messages


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def refusal(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    return caught.value


def test_sampling_goes_by_the_chat_s_names() -> None:
    request = chat(
        model="m",
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        stop_sequences=["a", "b"],
        stream=True,
        metadata={"user_id": "u"},
    )
    assert (request.model, request.max_tokens, request.stream) == ("m", 8, True)
    assert (request.temperature, request.top_p, request.top_k) == (0.5, 0.9, 40)
    assert request.stop == ["a", "b"]
    assert request.user == request.prompt_cache_key == "u"
    assert request.continue_final_message is False


@pytest.mark.parametrize("system", ["Be brief.", [text("Be brief.")], [text(""), text("Be brief.")]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    assert said(("user", "Hi"), system=system) == [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Hi"),
    ]


@pytest.mark.parametrize("system", [None, "", [], [text("")], [text(LINE % "abcde")]])
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert said(("user", "Hi"), system=system) == [ChatMessage("user", "Hi")]


def test_requests_that_differ_in_their_billing_line_have_one_prompt() -> None:
    apart = [said(("user", "Hi"), system=[text(LINE % cch), text("Be brief.")]) for cch in ("eb6c6", "0aaa9")]
    joined = [said(("user", "Hi"), system=f"{LINE % cch}\n\nBe brief.") for cch in ("eb6c6", "0aaa9")]
    expected = [ChatMessage("system", "Be brief."), ChatMessage("user", "Hi")]
    assert apart == joined == [expected, expected]


def test_consecutive_messages_of_one_role_are_one() -> None:
    assert said(("user", "a"), ("user", [text("b"), text("c")]), ("assistant", "d"), ("user", "e")) == [
        ChatMessage("user", "a\nb\nc"),
        ChatMessage("assistant", "d"),
        ChatMessage("user", "e"),
    ]


def test_a_system_message_amid_the_talk_stays_in_its_place() -> None:
    assert said(("user", "a"), ("system", "b"), ("user", "c")) == [
        ChatMessage("user", "a"),
        ChatMessage("system", "b"),
        ChatMessage("user", "c"),
    ]


def test_a_tool_s_use_and_its_result() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
    thought = {"type": "thinking", "thinking": "Where?", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    messages = said(
        ("user", "Hi"),
        ("assistant", [thought, hidden, text("I look."), USE]),
        ("user", [result, text("And now?")]),
    )
    assert messages == [
        ChatMessage("user", "Hi"),
        ChatMessage("assistant", "I look.", tool_calls=[CALL], reasoning_content="Where?"),
        ChatMessage("tool", "rain", tool_call_id="toolu_1"),
        ChatMessage("user", "And now?"),
    ]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({}, ""),
        ({"content": [text("a"), text("b")]}, "a\nb"),
        ({"content": "no such town", "is_error": True}, "Error: no such town"),
        ({"content": "error 7", "is_error": True}, "error 7"),
        ({"is_error": True}, "Error"),
        ({"content": "fine", "is_error": False}, "fine"),
    ],
)
def test_what_a_result_says(result: dict[str, Any], words: str) -> None:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **result}
    assert said(("user", "Hi"), ("assistant", [USE]), ("user", [block]))[-1] == ChatMessage(
        "tool", words, tool_call_id="toolu_1"
    )


def test_a_last_message_of_the_assistant_is_the_answer_s_beginning() -> None:
    request = chat(
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The answer is ("}]
    )
    assert request.continue_final_message is True
    assert request.messages[-1] == ChatMessage("assistant", "The answer is (")


def test_tools_are_functions() -> None:
    request = chat(tools=[WEATHER, {**WEATHER, "type": "custom", "strict": True}])
    assert request.tools == [
        Tool("function", FunctionDefinition("weather", "Of a town", {"type": "object"})),
        Tool("function", FunctionDefinition("weather", "Of a town", {"type": "object"}, strict=True)),
    ]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_choice_of_tools(choice: dict[str, Any], chosen: Any) -> None:
    request = chat(tools=[WEATHER], tool_choice=choice)
    assert request.tool_choice == chosen
    assert request.parallel_tool_calls is None
    alone = chat(tools=[WEATHER], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert alone.parallel_tool_calls is False


SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_the_output_s_form(fields: dict[str, Any]) -> None:
    form = chat(**fields).response_format
    assert form is not None
    assert form.json_schema is not None
    assert (form.type, form.json_schema.schema) == ("json_schema", SCHEMA)


ON = {"enable_thinking": True}


@pytest.mark.parametrize(
    ("fields", "effort", "budget", "variables"),
    [
        ({}, None, None, None),
        ({"thinking": {"type": "disabled"}}, "none", None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, None, 2000, ON),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "xhigh", None, ON),
        ({"output_config": {"effort": "low"}}, "low", None, None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}, "none", None, None),
    ],
)
def test_thinking(fields: dict[str, Any], effort: Any, budget: Any, variables: Any) -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8} | fields
    request = to_chat_request(msgspec.convert(asked, MessagesRequest), reasons=True)
    assert (request.reasoning_effort, request.thinking_token_budget) == (effort, budget)
    assert request.chat_template_kwargs == variables


def test_a_model_that_does_not_think_hears_of_no_effort() -> None:
    assert chat(output_config={"effort": "high"}).reasoning_effort is None


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 1.5}, "temperature", "temperature is 1.5; it must lie in [0, 1]"),
        ({"temperature": -0.1}, "temperature", "temperature is -0.1; it must lie in [0, 1]"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be at least 1"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "mcp_servers names servers"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type",
            "tools[0] has the type 'web_search_20250305', a tool that Anthropic runs or describes itself",
        ),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema", "tools[0].input_schema is missing"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name", "tools[0].name is missing"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "tool_choice.name is missing"),
        (
            {"tool_choice": {"type": "all"}},
            "tool_choice.type",
            "tool_choice.type is 'all'; it must be",
        ),
        ({"thinking": {"type": "deep"}}, "thinking.type", "thinking.type is 'deep'; it must be one of"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 0}},
            "thinking.budget_tokens",
            "thinking.budget_tokens is 0; it must be at least 1",
        ),
        (
            {"output_config": {"effort": "all"}},
            "output_config.effort",
            "output_config.effort is 'all'; it must be one of low, medium, high, xhigh, max",
        ),
        (
            {"thinking": {"type": "adaptive", "display": "all"}},
            "thinking.display",
            "thinking.display is 'all'; it must be one of",
        ),
        ({"output_format": {"type": "text"}}, "output_format.type", "output_format.type is 'text'"),
        (
            {"output_config": {"format": {"type": "json_schema"}}},
            "output_config.format.schema",
            "output_config.format.schema is missing",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
            "output_config.format and output_format are both set",
        ),
        ({"system": [{"type": "image"}]}, "system[0]", "system[0] is a block of type 'image'"),
    ],
)
def test_what_cannot_be_served_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert error.message.startswith(words)


@pytest.mark.parametrize(
    ("role", "block", "param"),
    [
        ("user", {"type": "image", "source": {"type": "url", "url": "x"}}, "messages[1].content[1]"),
        ("user", {"type": "document", "source": {"type": "text"}}, "messages[1].content[1]"),
        ("user", {"type": "web_search_tool_result", "content": {"type": "e"}}, "messages[1].content[1]"),
        ("user", USE, "messages[1].content[1]"),
        ("assistant", {"type": "server_tool_use"}, "messages[1].content[1]"),
        ("system", {"type": "image"}, "messages[1].content[1]"),
        ("user", {"type": "text"}, "messages[1].content[1].text"),
        ("user", {"type": "tool_result"}, "messages[1].content[1].tool_use_id"),
        (
            "user",
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]},
            "messages[1].content[1].content[0]",
        ),
        (
            "user",
            {"type": "tool_result", "tool_use_id": "a", "content": {"a": 1}},
            "messages[1].content[1].content",
        ),
        ("assistant", {"type": "tool_use", "name": "a", "input": {}}, "messages[1].content[1].id"),
        ("assistant", {"type": "tool_use", "id": "a", "input": {}}, "messages[1].content[1].name"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "a"}, "messages[1].content[1].input"),
    ],
)
def test_a_block_that_cannot_be_read_is_named_by_its_place(
    role: str, block: dict[str, Any], param: str
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": [text("b"), block]}]
    error = refusal(messages=[*messages, {"role": "user", "content": "c"}])
    assert error.param == param
    assert param in error.message


def test_an_unknown_role_is_named() -> None:
    error = refusal(messages=[{"role": "tool", "content": "a"}])
    assert error.param == "messages[0].role"
    assert error.message == "messages[0].role is 'tool'; it must be one of user, assistant, system"


def test_a_use_of_a_tool_that_nothing_follows_is_refused() -> None:
    error = refusal(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": [USE]}])
    assert error.param == "messages[1]"
    assert "no tool_result comes after it" in error.message


def test_what_is_only_counted_has_the_same_prompt() -> None:
    asked = {"messages": [{"role": "user", "content": "Hi"}], "system": "Be brief.", "tools": [WEATHER]}
    counted = to_prompt(msgspec.convert(asked, PromptRequest))
    answered = to_chat_request(msgspec.convert(asked | {"max_tokens": 8}, MessagesRequest))
    assert counted.messages == answered.messages
    assert counted.tools == answered.tools


BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image"])},
    optional={
        "text": st.text(max_size=3),
        "id": st.text(max_size=3),
        "name": st.text(max_size=3),
        "input": st.dictionaries(st.text(max_size=2), st.integers() | st.floats(), max_size=2),
        "tool_use_id": st.text(max_size=3),
        "content": st.text(max_size=3) | st.lists(st.just({"type": "text", "text": "x"}), max_size=2),
        "is_error": st.booleans(),
        "thinking": st.text(max_size=3),
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool"]),
            "content": st.text(max_size=3) | st.lists(BLOCKS, max_size=3),
        }
    ),
    min_size=1,
    max_size=4,
)


@given(MESSAGES)
def test_whatever_is_sent_is_a_chat_or_a_refusal_with_a_place(messages: list[dict[str, Any]]) -> None:
    try:
        request, refused_at = chat(messages=messages), ""
        parse_messages(request.messages)
    except InvalidRequestError as error:
        refused_at = error.param or "nowhere"
    if refused_at:
        assert refused_at.startswith("messages[")
        return
    roles = [message.role for message in request.messages]
    assert request.continue_final_message == (messages[-1]["role"] == "assistant")
    assert all(one != other for one, other in pairwise(roles) if one != "tool")
    results = [
        block
        for message in messages
        for block in message["content"]
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]
    assert [m.tool_call_id for m in request.messages if m.role == "tool"] == [
        block["tool_use_id"] for block in results
    ]
