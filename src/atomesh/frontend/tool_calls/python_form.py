"""Calls as Python writes them, `f(a=1, b="x")`, with literals for values; JSON's words are understood too."""

import json
import re
from collections.abc import Mapping
from typing import Any

from atomesh.frontend.tool_calls.call_reader import CallReader, Reading
from atomesh.frontend.tool_calls.dialect import Rules
from atomesh.frontend.tool_calls.flat_schema import flat_properties
from atomesh.frontend.tool_calls.python_literal import next_item, read_literal

_KEYS = re.compile("[A-Za-z0-9_]{1,64}")


class PythonForm:
    def read(self, reader: CallReader) -> Reading:
        name = yield from reader.name()
        yield from reader.space()
        yield from reader.literal("(")
        yield from reader.space()
        separator = ""
        while (yield from reader.peek()) != ")":
            key = yield from reader.name("_")
            yield from reader.space()
            yield from reader.literal("=")
            yield from reader.space()
            if not separator:
                reader.begin(name)
                reader.say("{")
            reader.say(f"{separator}{json.dumps(key)}: ")
            yield from read_literal(reader)
            separator = ", "
            yield from next_item(reader, ")")
        yield from reader.take()
        if not separator:
            reader.begin(name)
            reader.say("{")
        reader.say("}")

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        """Needed parameters first, so that a comma stands between any two; values as in JSON."""
        described = sorted(flat_properties(name, schema, _KEYS), key=lambda each: not each[2])
        parts: list[str] = []
        has_needed = any(is_needed for _, _, is_needed in described)
        optional: list[str] = []
        for key, inner, is_needed in described:
            part = f"{lark.text(key + '=')} {lark.json(inner)}"
            (parts if is_needed else optional).append(part)
        expression = f" {lark.text(', ')} ".join(parts)
        tail = _optional(optional, lark, follows=has_needed)
        return " ".join(filter(None, (lark.text(f"{name}("), expression, tail, lark.text(")"))))


def _optional(parts: list[str], lark: Rules, *, follows: bool) -> str:
    """Any of `parts` in their order, with commas between; one before the first where it `follows` others."""
    comma = lark.text(", ")
    if follows:
        return " ".join(f"({comma} {part})?" for part in parts)
    starts = [
        " ".join((part, *(f"({comma} {later})?" for later in parts[index + 1 :])))
        for index, part in enumerate(parts)
    ]
    return f"({' | '.join(starts)})?" if starts else ""
