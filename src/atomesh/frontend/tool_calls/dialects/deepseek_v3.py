"""DeepSeek V3 and R1, `function｜NAME` and the arguments in a fence; V3.1, `NAME｜{…}`. ｜ is a mark, too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atomesh.frontend.tool_calls.call_reader import CallReader, Reading
from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect, Rules

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE, _FENCE_END = "```json", "```"


@dataclass(frozen=True, slots=True)
class _Form:
    is_fenced: bool

    def read(self, reader: CallReader) -> Reading:
        """Either way, whatever the model is held to."""
        name = yield from reader.name()
        yield from reader.literal(_SEPARATOR)
        yield from reader.space()
        if (yield from reader.peek()) == "{":
            yield from reader.call(name)
            return
        name = yield from reader.name()
        yield from reader.space()
        yield from reader.literal(_FENCE)
        yield from reader.space()
        yield from reader.call(name)
        reader.end_call()
        yield from reader.space()
        yield from reader.literal(_FENCE_END)

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{self._head(name)}{json.dumps(arguments, ensure_ascii=False)}{self._tail}"

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        return f"{lark.text(self._head(name))} {lark.json(schema)} {lark.text(self._tail)}"

    def _head(self, name: str) -> str:
        return f"function{_SEPARATOR}{name}\n{_FENCE}\n" if self.is_fenced else name + _SEPARATOR

    @property
    def _tail(self) -> str:
        return "\n" + _FENCE_END if self.is_fenced else ""


def _dialect(name: str, form: _Form, between: str) -> Dialect:
    rows = {"first": _CALL, "between": _CALL, "call_end": _CALL_END, "closing": _CALLS_END}
    return Dialect(
        name=name,
        tables=(
            CallTable(form, opening=_CALLS, **rows),
            CallTable(form, opening=_CALL, **{**rows, "first": ""}),
        ),
        spelling=CallSpelling(
            form, opening=_CALLS, before=_CALL, after=_CALL_END, between=between, closing=_CALLS_END
        ),
        marks=(_CALLS, _CALLS_END, _CALL, _CALL_END, _SEPARATOR),
    )


DEEPSEEK_V3 = _dialect("deepseek_v3", _Form(is_fenced=True), "\n")
DEEPSEEK_V31 = _dialect("deepseek_v31", _Form(is_fenced=False), "")
