"""Whatever is sent: a chat, or a refusal with its place."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.chat_request import ChatRequest, parse_messages
from atomesh.frontend.openai.responses.items import NOTHING_BEFORE
from atomesh.frontend.openai.responses.planning import read_input
from atomesh.frontend.openai.responses.request import InputItem, ResponsesRequest, check_request
from atomesh.frontend.openai.responses.translation import to_chat

WORDS = st.sampled_from(
    [
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "item_reference",
        "web_search_call",
        "x",
    ]
)
PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
    optional={"text": st.text(max_size=3), "refusal": st.text(max_size=3)},
)
CONTENT = st.one_of(st.text(max_size=4), st.lists(PART, max_size=3), st.none())
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": WORDS,
        "id": st.sampled_from(["", "msg_1", "i" * 200]),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]),
        "content": CONTENT,
        "call_id": st.sampled_from(["a", "b"]),
        "name": st.text(max_size=3),
        "arguments": st.sampled_from(["{}", "{", "", "[1]"]),
        "output": CONTENT,
        "summary": st.lists(PART, max_size=2),
        "encrypted_content": st.sampled_from(["", "gAAAA", "atomesh-1.YQ=="]),
    },
)
USUAL = st.sampled_from(
    [
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    ]
)


def refused_place(request: ResponsesRequest) -> str | None:
    try:
        read_input(request, NOTHING_BEFORE)
    except InvalidRequestError as error:
        return str(error.param)
    return None


@given(st.lists(st.one_of(USUAL, ITEM), max_size=6), st.one_of(st.none(), st.text(max_size=3)))
def test_an_input_becomes_messages_or_is_refused_with_its_place(
    given_items: list[dict[str, Any]], instructions: str | None
) -> None:
    request = ResponsesRequest(input=msgspec.convert(given_items, list[InputItem]), instructions=instructions)
    check_request(request)
    place = refused_place(request)
    if place is not None:
        assert place.startswith("input")
        return
    items, messages = read_input(request, NOTHING_BEFORE)
    chat = to_chat(request, messages)
    assert isinstance(chat, ChatRequest)
    assert len(parse_messages(chat.messages)) == len(messages)
    assert len(items) == len(given_items)
    assert all(item["id"] for item in items)
    called = sum(len(message.tool_calls or ()) for message in chat.messages)
    assert called == sum(item["type"] == "function_call" for item in items)
