from typing import Any

from atomesh.frontend.openai.responses.conversation import count_droppable, to_messages, without_oldest


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}


def called(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": f'{{"id":"{call_id}"}}'}


def returned(call_id: str, output: object) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": f'{{"id":"{call_id}"}}'}
    return {"id": call_id, "type": "function", "function": function}


def test_what_the_assistant_did_at_a_stretch_is_one_message() -> None:
    items = [
        said("user", "weather?"),
        thought("hm"),
        said("assistant", "Looking."),
        called("a"),
        called("b"),
        returned("a", "sunny"),
        returned("b", [{"type": "input_text", "text": "wet"}]),
        said("assistant", "Both."),
    ]
    assert to_messages(items) == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "reasoning_content": "hm",
            "tool_calls": [chat_call("a"), chat_call("b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "wet"},
        {"role": "assistant", "content": "Both."},
    ]


def test_a_call_alone_has_no_content_and_reasoning_alone_an_empty_one() -> None:
    assert to_messages([called("a")]) == [
        {"role": "assistant", "content": None, "tool_calls": [chat_call("a")]}
    ]
    assert to_messages([thought("x")]) == [{"role": "assistant", "content": "", "reasoning_content": "x"}]


def test_another_message_and_later_reasoning_begin_another_turn() -> None:
    items = [
        said("assistant", "1"),
        said("assistant", "2"),
        thought("x"),
        called("a"),
        thought("y"),
        called("b"),
    ]
    assert [
        (m["content"], m.get("reasoning_content"), len(m.get("tool_calls", ()))) for m in to_messages(items)
    ] == [
        ("1", None, 0),
        ("2", None, 0),
        (None, "x", 1),
        (None, "y", 1),
    ]


def test_several_parts_stay_apart() -> None:
    [message] = to_messages([said("user", "a", "b")])
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    assert to_messages([refusal])[0]["content"] == [{"type": "refusal", "refusal": "no"}]


def test_the_oldest_go_first_and_outputs_with_their_calls_but_no_instructions() -> None:
    items = [said("user", "1"), called("a"), returned("a", "x"), said("developer", "d"), said("user", "2")]
    messages = [{"role": "system", "content": "s"}, *to_messages(items)]
    assert count_droppable(messages) == 3
    assert [m["role"] for m in without_oldest(messages, 1)] == [
        "system",
        "assistant",
        "tool",
        "developer",
        "user",
    ]
    assert [m["role"] for m in without_oldest(messages, 2)] == ["system", "developer", "user"]
    assert [m["role"] for m in without_oldest(messages, 3)] == ["system", "developer", "user"]
