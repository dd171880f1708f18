"""Kimi K2: `functions.NAME:INDEX`, a mark and the arguments, all in marks; the first is also the id."""

import json
import re
from collections.abc import Mapping
from typing import Any

from atomesh.frontend.tool_calls.call_reader import CallReader, NoCallError, Reading
from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect, Rules

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?(?P<name>[^:]+)(?::\d+)?")


class _Form:
    def read(self, reader: CallReader) -> Reading:
        call_id = yield from reader.name("_.-:")
        found = _ID.fullmatch(call_id)
        if found is None:
            raise NoCallError
        yield from reader.space()
        yield from reader.literal(_ARGUMENTS)
        yield from reader.space()
        yield from reader.call(found["name"], call_id)

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"functions.{name}:0{_ARGUMENTS}{json.dumps(arguments, ensure_ascii=False)}"

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        return f"{lark.text(f'functions.{name}:')} /[0-9]{{1,3}}/ {lark.text(_ARGUMENTS)} {lark.json(schema)}"


def _mint_id(name: str, index: int, _noise: bytes) -> str:
    return f"functions.{name}:{index}"


_ROWS = {"call_end": _CALL_END, "between": _CALL, "closing": _CALLS_END}

KIMI_K2 = Dialect(
    name="kimi_k2",
    tables=(
        CallTable(_Form(), opening=_CALLS, first=_CALL, **_ROWS),
        CallTable(_Form(), opening=_CALL, **_ROWS),
    ),
    spelling=CallSpelling(_Form(), opening=_CALLS, before=_CALL, after=_CALL_END, closing=_CALLS_END),
    marks=(_CALLS, _CALLS_END, _CALL, _CALL_END, _ARGUMENTS),
    mint_id=_mint_id,
)
