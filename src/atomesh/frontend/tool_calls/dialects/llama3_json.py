"""Llama 3: bare JSON that is the answer, or comes after `<|python_tag|>`; several are separated by `;`."""

from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect
from atomesh.frontend.tool_calls.json_form import JsonForm

_TAG = "<|python_tag|>"
_FORM = JsonForm("parameters")

LLAMA3_JSON = Dialect(
    name="llama3_json",
    tables=(
        CallTable(_FORM, starts_with="{", between=";"),
        CallTable(_FORM, opening=_TAG, starts_with="{", between=";"),
    ),
    spelling=CallSpelling(_FORM, between="; "),
    marks=(_TAG,),
)
