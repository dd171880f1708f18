"""An answer's parts as content blocks, streamed and whole."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.frontend.answer.parts import (
    ContentDelta,
    Part,
    ReasoningDelta,
    ToolArgumentsDelta,
    ToolCallStart,
)
from atomesh.frontend.anthropic.signature import sign
from atomesh.frontend.anthropic.streamed_blocks import StreamedBlocks
from atomesh.frontend.anthropic.whole_blocks import whole_blocks
from atomesh.frontend.http.json_text import encode_json

ANSWER: Sequence[Part] = (
    ReasoningDelta("It "),
    ReasoningDelta("rains."),
    ContentDelta(""),
    ContentDelta("I look\u2028"),
    ToolCallStart(0, "call_0", "weather"),
    ToolArgumentsDelta(0, '{"town":'),
    ToolArgumentsDelta(0, '"Oslo"}'),
    ToolCallStart(1, "call_1", "time"),
    ToolArgumentsDelta(1, "{}"),
)


def events(frames: bytes) -> list[dict[str, Any]]:
    """Whose names are their types."""
    found = []
    for frame in frames.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def whole(parts: Sequence[Part], **options: Any) -> Any:
    return json.loads(encode_json(whole_blocks(parts, **options)))


def streamed(parts: Sequence[Part], *, shows_thinking: bool = True) -> list[dict[str, Any]]:
    blocks = StreamedBlocks(shows_thinking=shows_thinking)
    return events(blocks.frames(parts) + blocks.stop())


def delta(index: int, kind: str, field: str, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: text}}


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_blocks_follow_one_another_each_with_a_start_and_a_stop() -> None:
    assert streamed(ANSWER) == [
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", "thinking", "It "),
        delta(0, "thinking_delta", "thinking", "rains."),
        delta(0, "signature_delta", "signature", sign("It rains.")),
        stop(0),
        start(1, type="text", text=""),
        delta(1, "text_delta", "text", "I look\u2028"),
        stop(1),
        start(2, type="tool_use", id="call_0", name="weather", input={}),
        delta(2, "input_json_delta", "partial_json", '{"town":'),
        delta(2, "input_json_delta", "partial_json", '"Oslo"}'),
        stop(2),
        start(3, type="tool_use", id="call_1", name="time", input={}),
        delta(3, "input_json_delta", "partial_json", "{}"),
        stop(3),
    ]


def test_the_whole_answer_has_the_same_blocks() -> None:
    assert whole(ANSWER) == [
        {"type": "thinking", "thinking": "It rains.", "signature": sign("It rains.")},
        {"type": "text", "text": "I look\u2028"},
        {"type": "tool_use", "id": "call_0", "name": "weather", "input": {"town": "Oslo"}},
        {"type": "tool_use", "id": "call_1", "name": "time", "input": {}},
    ]


def test_a_line_separator_is_escaped() -> None:
    assert b"I look\\u2028" in StreamedBlocks().frames([ContentDelta("I look\u2028")])


def test_thoughts_that_are_not_to_be_shown_are_signed_all_the_same() -> None:
    parts = [ReasoningDelta("It rains.")]
    assert streamed(parts, shows_thinking=False) == [
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "signature_delta", "signature", sign("It rains.")),
        stop(0),
    ]
    assert whole(parts, shows_thinking=False) == [
        {"type": "thinking", "thinking": "", "signature": sign("It rains.")}
    ]


def test_an_answer_without_a_word_has_no_block() -> None:
    assert streamed([ContentDelta("")]) == []
    assert whole([ContentDelta("")]) == []


def test_a_call_that_was_cut_off_has_no_input() -> None:
    parts: list[Part] = [ToolCallStart(0, "call_0", "weather"), ToolArgumentsDelta(0, '{"town":')]
    assert whole(parts) == [{"type": "tool_use", "id": "call_0", "name": "weather", "input": {}}]


@pytest.mark.parametrize(
    "arguments",
    [
        r'{"a": "\ud83d"}',
        '{"a":1e999}',
        '{"a": 123456789012345678901234567890, "b": 1.10}',
        '{"☂": "\u2028"}',
    ],
)
def test_an_input_is_to_the_letter_what_the_model_wrote(arguments: str) -> None:
    parts: list[Part] = [ToolCallStart(0, "call_0", "weather"), ToolArgumentsDelta(0, arguments)]
    assert arguments.replace("\u2028", r"\u2028").encode() in encode_json(whole_blocks(parts))
    assert whole(parts)[0]["input"] == json.loads(arguments)


@given(
    st.lists(
        st.one_of(
            st.builds(ContentDelta, st.text(max_size=4)), st.builds(ReasoningDelta, st.text(max_size=4))
        )
    )
)
def test_joined_deltas_are_the_whole(parts: list[Part]) -> None:
    joined: list[dict[str, Any]] = []
    for event in streamed(parts):
        if event["type"] == "content_block_start":
            joined.append(event["content_block"])
        if event["type"] == "content_block_delta":
            [field] = set(event["delta"]) - {"type"}
            joined[event["index"]][field] += event["delta"][field]
    assert joined == whole(parts)
