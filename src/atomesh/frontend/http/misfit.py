"""What does not fit its type, in the words of an API's clients: which value, and what it must be."""

import json
import re
from collections.abc import Callable

import msgspec

from atomesh.errors import InvalidRequestError

_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_ENTRY = re.compile(r"^(.*)\[\.\.\.\]$")  # of an object whose names are the client's
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")
_WORDS = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_MAX_SHOWN = 80  # characters of a value

ValueOf = Callable[[str], object]


def _untold(_name: str) -> object:
    raise LookupError


def misfit(
    error: msgspec.ValidationError, value_of: ValueOf = _untold, root: str = ""
) -> InvalidRequestError:
    """Whose `param` is the path of what does not fit, that of the whole value being `root`.

    `value_of` a top-level name is what was sent there; LookupError, RecursionError and DecodeError mean that
    it cannot be told.
    """
    text = str(error)
    found = _PLACE.search(text)
    path = found["path"] if found else ""
    place = f"{root}.{path}" if root and path and path[0] != "[" else root + path
    what = text[: found.start()] if found else text
    if missing := _MISSING.match(what):
        place = f"{place}.{missing['name']}" if place else missing["name"]
        return InvalidRequestError(f"{place} is missing; send it", param=place)
    if unknown := _UNKNOWN.match(what):
        name = unknown["name"][:_MAX_SHOWN]
        message = f"{place or 'the body'} has {name!r}, which is not known there; remove it"
        return InvalidRequestError(message, param=f"{place}.{name}" if place else name)
    wrong = _WRONG_TYPE.match(what)
    if wrong is None:
        return InvalidRequestError(f"{place or 'the body'}: {what}", param=place or None)
    wanted = _in_words(wrong["wanted"])
    if found and found["key"]:
        return InvalidRequestError(f"{place} has a key that is not {wanted}; rename it", param=place or None)
    sent = _show(value_of, path) or _WORDS.get(wrong["got"], wrong["got"])
    where = _ENTRY.sub(r"an entry of \1", place) or "the body"
    return InvalidRequestError(f"{where} is {sent}; it must be {wanted}", param=place or None)


def _in_words(kinds: str) -> str:
    """Null is absence, which need not be said."""
    words = [_WORDS.get(kind, kind) for kind in kinds.split(" | ") if kind != "null"]
    return " or ".join(words) or "null"


def _show(value_of: ValueOf, path: str) -> str | None:
    """The value at `path` as JSON, where it is found and is no list or object."""
    if not path or "..." in path:
        return None
    first, *steps = _STEP.finditer(path)
    try:
        value = value_of(first[2] or first[0])
        for step in steps:
            value = value[int(step[1])] if step[1] else value[step[2]]  # type: ignore[index]
        shown = json.dumps(value, ensure_ascii=False)
    except (LookupError, TypeError, RecursionError, msgspec.DecodeError):
        return None
    if isinstance(value, list | dict):
        return None
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
