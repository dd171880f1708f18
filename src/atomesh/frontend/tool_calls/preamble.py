"""Tools for a model whose chat template knows none: told in the system message, with calls in its dialect."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atomesh.frontend.tool_calls.dialect import Dialect

Message = Mapping[str, Any]


def count_characters(tools: Sequence[Mapping[str, Any]]) -> int:
    """About what they come to in a prompt."""
    return len(json.dumps(tools)) if tools else 0


def with_tools_in_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], dialect: Dialect
) -> list[Message]:
    """Roles are only those that every template knows: a result is a user's message."""
    told = list(_without_calls(messages, dialect))
    if not tools:
        return told
    words = _describe(tools, dialect)
    if told and told[0]["role"] == "system":
        return [{**told[0], "content": f"{told[0]['content']}\n\n{words}"}, *told[1:]]
    return [{"role": "system", "content": words}, *told]


def _describe(tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> str:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = dialect.spelling.show([("NAME", {"PARAMETER": "VALUE"})])
    return (
        "You can call functions to help with the user's request. These are the functions, each with the JSON "
        f"schema of its parameters:\n{functions}\n\nTo call one, write its name and all parameters that it "
        f"needs exactly in this form:\n{example}"
    )


def _without_calls(messages: Sequence[Message], dialect: Dialect) -> Iterator[Message]:
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            yield {"role": "user", "content": "\n".join(results)}
            results = []
        yield _in_words(message, dialect)
    if results:
        yield {"role": "user", "content": "\n".join(results)}


def _in_words(message: Message, dialect: Dialect) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    shown = dialect.spelling.show(
        [(name, given if isinstance(given, Mapping) else {}) for name, given in calls]
    )
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, (message["content"], shown)))}
