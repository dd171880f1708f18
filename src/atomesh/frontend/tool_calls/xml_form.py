"""Calls with an element for each parameter, as Qwen3-Coder writes them; the schema says what is text."""

import json
import re
from collections.abc import Mapping
from typing import Any

from atomesh.frontend.tool_calls.call_reader import CallReader, NoCallError, Reading
from atomesh.frontend.tool_calls.dialect import Rules
from atomesh.frontend.tool_calls.flat_schema import DESCRIPTIVE, cannot_be_held, flat_properties
from atomesh.frontend.tool_calls.value_types import is_text, to_json

_END = "</parameter>"
_VALUE_ENDS = ("\n" + _END, _END)
_KEYS = re.compile("[A-Za-z0-9_.-]{1,64}")
_OF_TEXT = DESCRIPTIVE | {"type", "enum", "const"}
_KEY_END = frozenset(">\n")


class XmlForm:
    """`<function=NAME><parameter=KEY>value</parameter>…</function>`, without its first mark `<function=`."""

    def read(self, reader: CallReader) -> Reading:
        name = yield from reader.name()
        yield from reader.literal(">")
        yield from reader.space()
        if name not in reader.tools:
            raise NoCallError
        properties = reader.tools[name].get("properties", {})
        mark = yield from reader.one_of(("<parameter=", "</function>"))
        reader.begin(name)
        reader.say("{")
        separator = ""
        while mark == "<parameter=":
            key = yield from reader.run_until(_KEY_END)
            yield from reader.literal(">")
            reader.say(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from _read_value(reader, properties.get(key, {}))
            separator = ", "
            yield from reader.space()
            mark = yield from reader.one_of(("<parameter=", "</function>"))
        reader.say("}")

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        shown = [
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n{_END}\n"
            for key, value in arguments.items()
        ]
        return f"<function={name}>\n{''.join(shown)}</function>"

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        parts = [lark.text(f"<function={name}>\n")]
        for key, inner, is_needed in flat_properties(name, schema, _KEYS):
            begin = lark.text(f"<parameter={key}>\n")
            value = _spell_value(key, inner, lark)
            parts.append(f"{begin} {value}" if is_needed else f"({begin} {value})?")
        return " ".join((*parts, lark.text("</function>")))


def _read_value(reader: CallReader, schema: object) -> Reading:
    """Text goes out as it comes; another value when it is whole."""
    if (yield from reader.peek()) == "\n":
        yield from reader.take()
    if is_text(schema):
        reader.say('"')
        yield from reader.text_until(_VALUE_ENDS, lambda text: reader.say(_escaped(text)))
        reader.say('"')
    else:
        text = yield from reader.whole_text_until(_VALUE_ENDS)
        reader.say(to_json(text, schema))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _spell_value(key: str, schema: Mapping[str, Any], lark: Rules) -> str:
    if not is_text(schema):
        return f"{lark.json(schema)} {lark.text(chr(10) + _END + chr(10))}"
    for word in schema:
        if word not in _OF_TEXT:
            raise cannot_be_held(f"texts as the parameter {key!r}", word)
    constants = [schema["const"]] if "const" in schema else schema.get("enum")
    if constants is not None:
        choices = " | ".join(lark.text(f"{text}\n{_END}\n") for text in constants)
        return f"({choices})"
    return lark.add(f"[suffix={json.dumps(chr(10) + _END + chr(10))}]: /(?s:.*)/")
