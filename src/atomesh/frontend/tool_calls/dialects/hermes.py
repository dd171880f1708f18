"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, each call in marks of its own."""

from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect
from atomesh.frontend.tool_calls.json_form import JsonForm

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"

HERMES = Dialect(
    name="hermes",
    tables=(CallTable(JsonForm(), opening=_OPENING, closing=_CLOSING),),
    spelling=CallSpelling(JsonForm(), before=f"{_OPENING}\n", after=f"\n{_CLOSING}", between="\n"),
    marks=(_OPENING, _CLOSING),
)
