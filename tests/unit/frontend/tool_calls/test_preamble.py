"""Tools in words, and earlier calls and results in the dialect's."""

import json
from typing import Any

import pytest

from atomesh.frontend.answer.whole_answer import parse_whole
from atomesh.frontend.tool_calls.preamble import with_tools_in_text
from atomesh.frontend.tool_calls.registry import DIALECTS, load_dialect
from atomesh.frontend.tool_calls.tool_call_parser import ToolCallParser
from atomesh.testing.tool_transcripts import TOOLS

SHOWN = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ARGUMENTS: dict[str, Any] = {"city": "Köln", "days": 3, "exact": True, "tags": ["a"], "note": None}
CALLS: Any = [
    {"id": "1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}},
    {"id": "2", "type": "function", "function": {"name": "time.now", "arguments": {}}},
]
HISTORY = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "I look.", "tool_calls": CALLS},
    {"role": "tool", "content": "sunny", "tool_call_id": "1"},
    {"role": "tool", "content": "noon", "tool_call_id": "2"},
    {"role": "user", "content": "Thanks."},
]
HERMES = load_dialect("hermes")


def test_without_tools_and_calls_nothing_changes() -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    assert with_tools_in_text(messages, [], HERMES) == messages


def test_tools_are_told_at_the_end_of_the_system_message_or_in_one_of_their_own() -> None:
    user = {"role": "user", "content": "Hello"}
    alone, same = with_tools_in_text([user], SHOWN, HERMES)
    assert (alone["role"], same) == ("system", user)
    assert json.dumps(SHOWN[0]["function"]) in alone["content"]
    joined, _ = with_tools_in_text([{"role": "system", "content": "Be brief."}, user], SHOWN, HERMES)
    assert joined["content"] == f"Be brief.\n\n{alone['content']}"


def test_results_in_a_row_are_one_message_of_the_user_s() -> None:
    told = with_tools_in_text(HISTORY, [], HERMES)
    assert [message["role"] for message in told] == ["user", "assistant", "user", "user"]
    results = "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert told[2]["content"] == results
    assert with_tools_in_text(HISTORY[:-1], [], HERMES)[-1]["content"] == results
    assert "tool_calls" not in told[1]


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_earlier_calls_are_told_as_the_parser_reads_them(name: str) -> None:
    dialect = load_dialect(name)
    text = dialect.spelling.show([("weather", ARGUMENTS), ("time.now", {})])
    assert with_tools_in_text(HISTORY, [], dialect)[1]["content"] == f"I look.\n{text}"
    answer = parse_whole(ToolCallParser(dialect, TOOLS, lambda _name, index: str(index)), [(text, 1)])
    assert answer.content == ""
    called = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert called == [("weather", ARGUMENTS), ("time.now", {})]
