"""Gemma, Llama 3.2 and 4: `[f(a=1), g(b="x")]` that is the answer, or stands between marks or in a fence."""

from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect
from atomesh.frontend.tool_calls.python_form import PythonForm

_START, _END = "<|python_start|>", "<|python_end|>"
_FENCE, _FENCE_END = "```tool_code\n", "```"
_LIST = {"starts_with": "[", "first": "[", "between": ",", "closing": "]"}

PYTHONIC = Dialect(
    name="pythonic",
    tables=(
        CallTable(PythonForm(), **_LIST),
        CallTable(PythonForm(), opening=_START, **_LIST),
        CallTable(PythonForm(), opening=_FENCE, **_LIST),
        CallTable(PythonForm(), opening=_FENCE, closing=_FENCE_END),
    ),
    spelling=CallSpelling(PythonForm(), opening="[", between=", ", closing="]"),
    marks=(_START, _END),
)
