"""Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`.

The outer marks are sometimes left out.
"""

from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect
from atomesh.frontend.tool_calls.xml_form import XmlForm

_OPENING, _CLOSING, _FUNCTION = "<tool_call>", "</tool_call>", "<function="

QWEN3_CODER = Dialect(
    name="qwen3_coder",
    tables=(
        CallTable(XmlForm(), opening=_OPENING, first=_FUNCTION, between=_FUNCTION, closing=_CLOSING),
        CallTable(XmlForm(), opening=_FUNCTION),
    ),
    spelling=CallSpelling(XmlForm(), before=f"{_OPENING}\n", after=f"\n{_CLOSING}", between="\n"),
    marks=(_OPENING, _CLOSING),
)
