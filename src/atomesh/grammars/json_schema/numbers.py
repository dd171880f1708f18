"""llguidance computes with doubles: the numbers of a schema are held to what those say exactly."""

import math
from typing import Any, TypeGuard

from atomesh.errors import InvalidRequestError

LARGEST = 2**53
NEAREST = 1e-9  # to a whole number that is excluded
_UPPER = ("maximum", "exclusiveMaximum")
_LOWER = ("minimum", "exclusiveMinimum")


def bound_numbers(node: dict[str, Any]) -> None:
    """Draw bounds that are too wide to ±2^53, which only forbids more.

    Raises InvalidRequestError for numbers that an answer would have to be, and that are larger.
    """
    for keyword in (*_UPPER, *_LOWER):
        bound = node.get(keyword)
        if not _is_number(bound) or abs(bound) <= LARGEST:
            continue
        if (bound > 0) != (keyword in _UPPER):
            raise _too_large(keyword, bound)
        node[keyword] = int(math.copysign(LARGEST, bound))
    _include_bound(node, "exclusiveMinimum", "minimum", 1)
    _include_bound(node, "exclusiveMaximum", "maximum", -1)
    for keyword in ("const", "enum", "multipleOf"):
        if keyword in node:
            _check_values(keyword, node[keyword])


def _include_bound(node: dict[str, Any], exclusive: str, inclusive: str, sign: int) -> None:
    """llguidance lets 0 through where a number is to be more than 0 and at most 0.5."""
    bound: Any = node.get(inclusive) if node.get(exclusive) is True else node.get(exclusive)
    other: Any = node.get(inclusive, bound)
    if not _is_number(bound) or not _is_number(other) or bound != int(bound) or abs(bound) > 2**20:
        return
    del node[exclusive]
    node[inclusive] = sign * max(sign * bound + NEAREST, sign * other)


def _check_values(keyword: str, values: object) -> None:
    waiting = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif _is_number(value) and abs(value) > LARGEST:
            raise _too_large(keyword, value)
        elif isinstance(value, str):
            _check_characters(keyword, value)


def _check_characters(keyword: str, text: str) -> None:
    for character in text:
        if (character < " " and character not in "\b\t\n\f\r") or character == "\x7f":
            raise InvalidRequestError(
                f"the schema's {keyword!r} has the control character U+{ord(character):04X}, which no answer "
                "has; leave it out"
            )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _too_large(keyword: str, value: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"the schema's {keyword!r} has {str(value)[:40]}; numbers are held up to 2^53: make it smaller"
    )
