"""A grammar of llguidance's Lark for the calls that an answer must consist of."""

import json
import re
from collections.abc import Mapping
from typing import Any

from atomesh.frontend.tool_calls.closed_schema import closed
from atomesh.frontend.tool_calls.dialect import Dialect
from atomesh.frontend.tool_calls.tools import ToolUse

# As compact JSON is written everywhere here; elsewhere in a schema the key is no keyword.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class LarkRules:
    """Texts of `special_tokens` become these tokens' ids, as no others could stand for them."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special = special_tokens
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._pattern = re.compile(
            f"({'|'.join(map(re.escape, longest_first))})" if longest_first else "(?!)"
        )
        self._rules: list[str] = []

    def text(self, text: str) -> str:
        parts = [part for part in self._pattern.split(text) if part]
        return " ".join(self._token(part) for part in parts)

    def _token(self, part: str) -> str:
        return f"<[{self._special[part]}]>" if part in self._special else json.dumps(part, ensure_ascii=False)

    def json(self, schema: Mapping[str, Any]) -> str:
        return self.add(f": %json {json.dumps({**schema, 'x-guidance': _COMPACT}, ensure_ascii=False)}")

    def add(self, rule: str) -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(name + rule)
        return name

    def grammar(self, start: str) -> str:
        return "\n".join((f"start: {start}", *self._rules)) + "\n"


def calls_grammar(
    dialect: Dialect,
    use: ToolUse,
    special_tokens: Mapping[str, int],
    *,
    otherwise: Mapping[str, Any] | None = None,
) -> str:
    """At least one call of what may be called, and nothing else. Raises InvalidRequestError.

    `special_tokens` are ids by text; `otherwise` is the schema of JSON that may come in the calls' place.
    """
    spelling = dialect.spelling
    lark = LarkRules({mark: special_tokens[mark] for mark in dialect.marks if mark in special_tokens})
    spelled = [spelling.form.spell(name, closed(schema), lark) for name, schema in use.callable.items()]
    form = lark.add(f": {' | '.join(spelled)}")
    call = lark.add(f": {lark.text(spelling.before)} {form} {lark.text(spelling.after)}")
    more = f"({lark.text(spelling.between)} {call})*" if use.is_parallel else ""
    calls = f"{lark.text(spelling.opening)} {call} {more} {lark.text(spelling.closing)}"
    if otherwise is None:
        return lark.grammar(calls)
    return lark.grammar(f"{lark.text(spelling.answer)} {lark.json(otherwise)} | {calls}")
