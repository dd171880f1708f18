"""Calls as one JSON object, which has the name and the arguments in it."""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from atomesh.frontend.tool_calls.call_reader import CallReader, NoCallError, Reading
from atomesh.frontend.tool_calls.dialect import Rules

_ARGUMENTS = ("arguments", "parameters")
_ASIDE = ("type", "id")  # what some models write beside them, also before the name
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class JsonForm:
    """`{"name": …, "arguments": {…}}`; `key` is what the model is held to, but both names are read."""

    key: str = "arguments"

    def read(self, reader: CallReader) -> Reading:
        yield from reader.literal("{")
        call = _ObjectCall(reader)
        mark = ""
        while mark != "}":
            yield from reader.space()
            yield from call.member()
            yield from reader.space()
            mark = yield from reader.one_of((",", "}"))
        call.end()

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        return json.dumps({"name": name, self.key: arguments}, ensure_ascii=False)

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        head = f'{{"name": {json.dumps(name)}, "{self.key}": '
        return f"{lark.text(head)} {lark.json(schema)} {lark.text('}')}"


class _ObjectCall:
    """One such object, member by member."""

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._name = ""
        self._held: str | None = None  # arguments that came before the name
        self._is_begun = False

    def member(self) -> Reading:
        reader = self._reader
        key = yield from reader.json_string()
        yield from reader.space()
        yield from reader.literal(":")
        yield from reader.space()
        if key == "name" and not self._name:
            self._name = yield from reader.json_string()
        elif key in _ARGUMENTS and self._held is None and not self._is_begun:
            yield from self._arguments()
        elif self._is_begun or key in _ASIDE or (self._name and self._held is not None):
            yield from reader.json_value()
        else:
            raise NoCallError

    def _arguments(self) -> Reading:
        """An object, passed on as it comes once the name is known; also one in a string, or null for none."""
        reader = self._reader
        if self._name and (yield from reader.peek()) == "{":
            self._is_begun = True
            reader.begin(self._name)
            yield from reader.json_arguments()
            reader.is_in_tail = True
        else:
            self._held = yield from self._whole_arguments()

    def _whole_arguments(self) -> Generator[None, None, str]:
        text = yield from self._reader.json_value()
        if text.startswith('"'):
            text = json.loads(text)
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise NoCallError from None
        if value is None:
            return "{}"
        if not isinstance(value, dict):
            raise NoCallError
        return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text.strip())

    def end(self) -> None:
        if self._is_begun:
            return
        if not self._name:
            raise NoCallError
        self._reader.begin(self._name)
        self._reader.say("{}" if self._held is None else self._held)


def _refuse(_constant: str) -> None:
    raise ValueError
