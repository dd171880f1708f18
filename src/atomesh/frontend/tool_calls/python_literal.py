"""A Python literal to JSON, as it comes: strings, numbers, True, False, None, lists, dictionaries.

JSON is understood, too. What was read is said as soon as it is known. NoCallError for anything else.
"""

import json
import math
import re
from collections.abc import Generator

from atomesh.frontend.tool_calls.call_reader import CallReader, NoCallError, Reading
from atomesh.frontend.tool_calls.json_scanner import MAX_DEPTH

_DEEPEST = MAX_DEPTH // 2  # each level is a few generators
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"'": "'", "/": "/", "\n": "", "0": "\\u0000", "a": "\\u0007", "v": "\\u000b"}
_SAME_ESCAPES = frozenset('"\\bfnrt')
_HEX_LENGTHS = {"x": 2, "u": 4}
_PLAIN = re.compile(r"""[^"'\\\n]*""")
_NUMBER_CHARACTERS = "+-._"
_INTEGER = re.compile(r"[+-]?[0-9]{1,400}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_literal(reader: CallReader, depth: int = 0) -> Reading:
    """Say the JSON of the next literal."""
    if depth > _DEEPEST:
        raise NoCallError
    first = yield from reader.peek()
    if first in "\"'":
        yield from _read_string(reader)
    elif first == "[":
        yield from _read_items(reader, "]", depth)
    elif first == "{":
        yield from _read_items(reader, "}", depth)
    else:
        word = yield from reader.name(_NUMBER_CHARACTERS)
        reader.say(_WORDS.get(word) or _number(word))


def _read_string(reader: CallReader) -> Reading:
    quote = yield from reader.take()
    reader.say('"')
    while True:
        yield from reader.more()
        if run := reader.run(_PLAIN):
            reader.say(_escaped(run))
        elif (char := (yield from reader.take())) == quote:
            reader.say('"')
            return
        elif char == "\n":
            raise NoCallError
        else:
            reader.say((yield from _read_escape(reader)) if char == "\\" else _escaped(char))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _read_escape(reader: CallReader) -> Generator[None, None, str]:
    """The JSON of what stands behind a backslash."""
    char = yield from reader.take()
    if char in _SAME_ESCAPES:
        return "\\" + char
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char in _HEX_LENGTHS:
        digits = ""
        for _ in range(_HEX_LENGTHS[char]):
            digits += yield from reader.take()
        if not re.fullmatch("[0-9a-fA-F]+", digits):
            raise NoCallError
        return f"\\u{digits:0>4}"
    return "\\\\" + _escaped(char)


def _read_items(reader: CallReader, closing: str, depth: int) -> Reading:
    reader.say((yield from reader.take()))
    separator = ""
    yield from reader.space()
    while (yield from reader.peek()) != closing:
        reader.say(separator)
        if closing == "}":
            yield from _read_key(reader)
        yield from read_literal(reader, depth + 1)
        separator = ", "
        yield from next_item(reader, closing)
    reader.say((yield from reader.take()))


def _read_key(reader: CallReader) -> Reading:
    if (yield from reader.peek()) not in "\"'":
        raise NoCallError
    yield from _read_string(reader)
    yield from reader.space()
    yield from reader.literal(":")
    yield from reader.space()
    reader.say(": ")


def next_item(reader: CallReader, closing: str) -> Reading:
    """To the next item, or to `closing`; only a comma may stand before it."""
    yield from reader.space()
    if (yield from reader.peek()) != closing:
        yield from reader.literal(",")
        yield from reader.space()


def _number(word: str) -> str:
    plain = word.replace("_", "")
    if _INTEGER.fullmatch(plain):
        return str(int(plain))
    if _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return json.dumps(number)
    raise NoCallError
