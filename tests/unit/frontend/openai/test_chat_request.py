import msgspec
import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.chat_request import ChatMessage, ChatRequest, parse_chat_sampling, parse_messages
from atomesh.frontend.sampling_defaults import SamplingDefaults


def request(**fields: object) -> ChatRequest:
    return msgspec.convert({"messages": [{"role": "user", "content": "hi"}], **fields}, ChatRequest)


def messages(*raw: dict[str, object]) -> list[ChatMessage]:
    return msgspec.convert(list(raw), list[ChatMessage])


def test_parts_are_joined_and_developers_are_systems() -> None:
    parsed = parse_messages(
        messages(
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        )
    )
    assert parsed == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}]


def test_a_refusal_part_keeps_its_text() -> None:
    refused = {"type": "refusal", "refusal": "I can't."}
    parsed = parse_messages(messages({"role": "assistant", "content": [refused]}))
    assert parsed == [{"role": "assistant", "content": "I can't."}]


def test_calls_in_the_history_reach_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    broken = {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{"}}
    parsed = parse_messages(
        messages(
            {"role": "assistant", "tool_calls": [call, broken]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        )
    )
    assert parsed[0]["content"] == ""
    assert parsed[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert parsed[0]["tool_calls"][1] == broken
    assert parsed[1] == {"role": "tool", "content": "42", "tool_call_id": "1"}


def test_the_rest_of_the_context_is_the_default() -> None:
    assert parse_chat_sampling(request()).max_tokens is None
    assert parse_chat_sampling(request(max_tokens=5, max_completion_tokens=7)).max_tokens == 7


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_are_counted(fields: dict[str, object], expected: int | None) -> None:
    assert parse_chat_sampling(request(**fields)).logprobs == expected


@pytest.mark.parametrize(
    "fields", [{"best_of": 1}, {"n": 2, "best_of": 2}, {"echo": False}, {"top_logprobs": 0}]
)
def test_what_asks_for_nothing_new_is_taken(fields: dict[str, object]) -> None:
    parse_chat_sampling(request(**fields))


def test_echo_is_for_completions() -> None:
    with pytest.raises(InvalidRequestError, match="echo is not supported in chat") as caught:
        parse_chat_sampling(request(echo=True))
    assert caught.value.param == "echo"


def test_the_models_defaults_hold_where_the_request_does_not_say() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_p=0.95)
    params = parse_chat_sampling(request(temperature=0.0), defaults)
    assert (params.temperature, params.top_p, params.top_k) == (0.0, 0.95, 0)
    assert parse_chat_sampling(request(), defaults).temperature == 0.6
