"""GPT-OSS: a call is a message of the harmony format to `functions.NAME`.

Answers are as a rule read by the reasoning dialect of the same name, which knows all kinds of messages. The
end of a call is where the model's answer ends, so that there is one call an answer.
"""

import json
from collections.abc import Mapping
from typing import Any

from atomesh.frontend.reasoning.harmony_header import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MESSAGE,
    RETURN,
    START,
)
from atomesh.frontend.tool_calls.call_reader import CallReader, Reading
from atomesh.frontend.tool_calls.dialect import CallSpelling, CallTable, Dialect, Rules

_TO_FUNCTION = f"{CHANNEL}commentary to={FUNCTIONS}"
_BEFORE = f"{START}assistant{_TO_FUNCTION}"
_TYPE = f" {CONSTRAIN}json{MESSAGE}"


class _Form:
    def read(self, reader: CallReader) -> Reading:
        name = yield from reader.name()
        mark = ""
        while mark != MESSAGE:
            if (yield from reader.peek()) != "<":
                yield from reader.run_until("<")
            mark = yield from reader.one_of((CONSTRAIN, CHANNEL, MESSAGE))
        yield from reader.space()
        yield from reader.call(name)

    def show(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name}{_TYPE}{json.dumps(arguments, ensure_ascii=False)}"

    def spell(self, name: str, schema: Mapping[str, Any], lark: Rules) -> str:
        return f"{lark.text(name + _TYPE)} {lark.json(schema)}"


HARMONY = Dialect(
    name="harmony",
    tables=tuple(
        CallTable(_Form(), opening=opening, between=f"{CALL}{_BEFORE}") for opening in (_BEFORE, _TO_FUNCTION)
    ),
    spelling=CallSpelling(
        _Form(), before=_BEFORE, between=CALL, answer=f"{START}assistant{CHANNEL}final{MESSAGE}"
    ),
    marks=(START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN),
)
