"""Validates answers exactly: numbers are decimals, and formats are asserted."""

import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema
from jsonschema import FormatChecker
from jsonschema.validators import extend, validator_for

_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
_MAILBOX = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*")
_DURATION = re.compile(
    r"P(?!$)(?:\d+W|(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?)", re.ASCII
)
_TIME = re.compile(r"(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|[+-](\d\d:\d\d))", re.ASCII)


def faults_of(schema: Mapping[str, Any], text: str) -> list[str]:
    """Of a whole answer; empty for a valid one."""
    try:
        value = json.loads(text, parse_float=_decimal)
    except ValueError as error:
        return [f"no JSON: {error}"]
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    kind = _exact(validator_for(exact, default=jsonschema.Draft202012Validator))
    return [
        f"{fault.json_path}: {fault.message[:200]}"
        for fault in kind(exact, format_checker=_formats()).iter_errors(value)
    ]


def _decimal(text: str) -> Decimal:
    """An exponent beyond decimals' own is a double's infinity, or its 0."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal(float(text))


@cache
def _exact(kind: Any) -> Any:
    return extend(kind, {"multipleOf": _multiple_of, "pattern": _pattern})


def _multiple_of(
    _validator: Any, step: Any, value: Any, _schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if (
        isinstance(value, int | Decimal)
        and not isinstance(value, bool)
        and Fraction(value) % Fraction(step) != 0
    ):
        yield jsonschema.ValidationError(f"{value} is no multiple of {step}")


def _pattern(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    ours = pattern.replace("(?<", "(?P<")  # as Python has named groups; none of ours looks behind
    if isinstance(value, str) and not re.search(ours, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


@cache
def _formats() -> FormatChecker:
    checker = FormatChecker(formats=())
    for name, check in _CHECKS.items():
        checker.checks(name, raises=ValueError)(_of_texts(check))
    return checker


def _of_texts(check: Callable[[str], object]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or check(value) is not False


def _is_date_time(text: str) -> bool:
    day, _, rest = text.partition("T")
    return date.fromisoformat(day).isoformat() == day and _is_time(rest)


def _is_time(text: str) -> bool:
    found = _TIME.fullmatch(text)
    if found is None:
        return False
    time.fromisoformat(found[1])
    return found[2] is None or time.fromisoformat(found[2]) is not None


def _is_host(text: str) -> bool:
    return len(text) <= 253 and all(map(_LABEL.fullmatch, text.split(".")))


def _is_email(text: str) -> bool:
    mailbox, _, host = text.rpartition("@")
    return (
        bool(_MAILBOX.fullmatch(mailbox)) and all(mailbox.split(".")) and _is_host(host) and len(text) <= 254
    )


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "date": lambda text: date.fromisoformat(text).isoformat() == text,
    "date-time": _is_date_time,
    "time": _is_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": _is_email,
    "hostname": _is_host,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": lambda text: str(uuid.UUID(text)) == text.lower(),
    "uri": lambda text: _URI.fullmatch(text) is not None,
}
