"""Where the regular expressions that llguidance reads, Rust's, mean another thing than a schema's of ECMA."""

import re
from typing import Any

from atomesh.errors import InvalidRequestError
from atomesh.grammars.expression import check_expression

_OPENING = re.compile(r"\\.|(?P<open>\[\^?)", re.DOTALL)
_INSIDE = re.compile(r"(?:\\.|[^\]\\])*", re.DOTALL)
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_SET_WORDS = ("[", "&&", "--", "~~")


def check_patterns(node: dict[str, Any]) -> None:
    """Raises InvalidRequestError, which names the keyword, for a class that would be a set there, or an end
    that would be left out."""
    _check("pattern", node.get("pattern"))
    named = node.get("patternProperties")
    for pattern in named if isinstance(named, dict) else ():
        _check("patternProperties", pattern)


def _check(keyword: str, pattern: object) -> None:
    if not isinstance(pattern, str):
        return
    try:
        check_expression(pattern)
    except ValueError as error:
        raise InvalidRequestError(f"the schema's {keyword!r} is {pattern[:80]!r}: {error}") from None
    if word := _set_word(pattern):
        raise InvalidRequestError(
            f"the schema's {keyword!r} has {word!r} in a character class of {pattern[:80]!r}; "
            "escape it with a backslash"
        )


def _set_word(pattern: str) -> str | None:
    place = 0
    while (found := _OPENING.search(pattern, place)) is not None:
        place = found.end()
        if found["open"] is None:
            continue
        inside = _INSIDE.match(pattern, place)
        text = "" if inside is None else inside[0]
        plain = _ESCAPED.sub("  ", text)
        for word in _SET_WORDS:
            if word in plain:
                return word
        place += len(text) + 1
    return None
