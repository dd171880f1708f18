import itertools
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
from atomesh.frontend.openai.responses.items import unseal
from atomesh.frontend.openai.responses.output_writer import OutputWriter


def writer(*, seals_reasoning: bool = False) -> OutputWriter:
    numbers = itertools.count()
    return OutputWriter(lambda prefix: f"{prefix}{next(numbers)}", seals_reasoning=seals_reasoning)


def write(*parts: Part, status: Any = "completed") -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events and items."""
    output = writer()
    events = [event for part in parts for event in output.add(part)]
    return [*events, *output.finish(status)], output.items()


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def test_a_message_s_events() -> None:
    events, items = write(ContentDelta("a"), ContentDelta("b"))
    place = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
    message = {"id": "msg_0", "type": "message", "role": "assistant"}
    done = {**message, "status": "completed", "content": [text_part("ab")]}
    assert events == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**message, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": text_part("")},
        {"type": "response.output_text.delta", **place, "delta": "a", "logprobs": ()},
        {"type": "response.output_text.delta", **place, "delta": "b", "logprobs": ()},
        {"type": "response.output_text.done", **place, "text": "ab", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": text_part("ab")},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
    ]
    assert items == [done]


def test_a_call_s_events() -> None:
    events, items = write(
        ToolCallStart(0, "call_1", "f"), ToolArgumentsDelta(0, "{"), ToolArgumentsDelta(0, "}")
    )
    place = {"item_id": "fc_0", "output_index": 0}
    call = {"id": "fc_0", "type": "function_call", "call_id": "call_1", "name": "f"}
    assert events == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**call, "status": "in_progress", "arguments": ""},
        },
        {"type": "response.function_call_arguments.delta", **place, "delta": "{"},
        {"type": "response.function_call_arguments.delta", **place, "delta": "}"},
        {"type": "response.function_call_arguments.done", **place, "name": "f", "arguments": "{}"},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**call, "status": "completed", "arguments": "{}"},
        },
    ]
    assert items == [{**call, "status": "completed", "arguments": "{}"}]


def test_items_follow_each_other_and_only_the_last_is_cut() -> None:
    events, items = write(
        ReasoningDelta("hm"),
        ContentDelta("so"),
        ToolCallStart(0, "c0", "f"),
        ToolArgumentsDelta(0, "{}"),
        ToolCallStart(1, "c1", "g"),
        ToolArgumentsDelta(1, '{"a'),
        status="incomplete",
    )
    kinds = [(event["type"].removeprefix("response."), event["output_index"]) for event in events]
    assert kinds == [
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
    ]
    assert [(item["type"], item["status"]) for item in items] == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert items[0]["summary"] == []


def test_a_call_whose_arguments_are_cut_is_incomplete_in_a_complete_answer() -> None:
    _, [call] = write(ToolCallStart(0, "call_1", "f"), ToolArgumentsDelta(0, '{"a": '))
    assert (call["status"], call["arguments"]) == ("incomplete", '{"a": ')


def test_silence_is_an_empty_message() -> None:
    events, [item] = write()
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert item["content"] == [text_part("")]


def test_logprobs_of_the_end_come_with_an_empty_text() -> None:
    output = writer()
    output.add(ContentDelta("a"), ["A"])
    events = output.finish("completed", ["end"])
    assert (events[0]["delta"], events[0]["logprobs"]) == ("", ["end"])
    assert events[1]["logprobs"] == ["A", "end"]
    assert output.items()[0]["content"][0]["logprobs"] == ["A", "end"]


def test_an_open_item_is_told_as_far_as_it_has_come() -> None:
    output = writer()
    output.add(ReasoningDelta("hm"))
    output.add(ContentDelta("a"))
    assert [(item["status"], item["content"][0]["text"]) for item in output.items()] == [
        ("completed", "hm"),
        ("in_progress", "a"),
    ]


@pytest.mark.parametrize("seals", [False, True])
def test_reasoning_is_sealed_where_asked(seals: bool) -> None:
    output = writer(seals_reasoning=seals)
    output.add(ReasoningDelta("be"))
    output.add(ReasoningDelta("cause"))
    output.finish("completed")
    [item] = output.items()
    assert ("encrypted_content" in item) is seals
    if seals:
        assert unseal(item["encrypted_content"], "") == "because"


PARTS = st.lists(
    st.one_of(
        st.builds(ContentDelta, st.text(min_size=1, max_size=3)),
        st.builds(ReasoningDelta, st.text(min_size=1, max_size=3)),
        st.builds(ToolCallStart, st.just(0), st.uuids().map(str), st.just("f")),
    ),
    max_size=12,
)


@given(PARTS)
def test_the_deltas_of_each_item_join_to_it(parts: list[Part]) -> None:
    events, items = write(*parts)
    joined = [""] * len(items)
    for event in events:
        if event["type"].endswith(".delta"):
            joined[event["output_index"]] += event["delta"]
    texts = [item["content"][0]["text"] if "content" in item else item["arguments"] for item in items]
    assert joined == texts
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == items
    assert len({item["id"] for item in items}) == len(items)
