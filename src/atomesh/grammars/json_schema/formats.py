"""Formats that llguidance takes for more than they are: here they are regular expressions of our own.

A date exists in the calendar, a time has no leap second (RFC 3339 has one only at some midnights), a host's
name and its labels are as short as RFC 1035 wants them, and a mailbox as RFC 5321 does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atomesh.errors import InvalidRequestError

_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = r"(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_LABEL = r"[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]"


@dataclass(frozen=True, slots=True)
class Format:
    regex: str
    max_length: int | None = None


OURS: Mapping[str, Format] = {
    "date": Format(_DATE),
    "time": Format(_TIME),
    "date-time": Format(rf"{_DATE}T{_TIME}"),
    "hostname": Format(rf"{_LABEL}(?:\.{_LABEL})*", max_length=253),
    "email": Format(rf"{_ATOM}(?:\.?{_ATOM}){{0,31}}@{_LABEL}(?:\.{_LABEL}){{0,3}}", max_length=254),
}
LLGUIDANCES = frozenset({"duration", "ipv4", "ipv6", "uuid", "uri"})


def spell_out_format(node: dict[str, Any]) -> None:
    """Put in place of one of our formats what it means. Raises InvalidRequestError for an unknown one."""
    name = node.get("format")
    if not isinstance(name, str) or name in LLGUIDANCES or not _is_of_strings(node):
        return
    if name not in OURS:
        known = ", ".join(sorted({*OURS, *LLGUIDANCES}))
        raise InvalidRequestError(
            f"the schema's 'format' is {name[:40]!r}; those held are {known}: leave it out"
        )
    ours = OURS[name]
    del node["format"]
    _also(node, "pattern", f"^(?:{ours.regex})$")
    if ours.max_length is not None:
        _also(node, "maxLength", ours.max_length)


def _is_of_strings(node: Mapping[str, Any]) -> bool:
    kinds = node.get("type", "string")
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _also(node: dict[str, Any], keyword: str, value: object) -> None:
    if keyword not in node:
        node[keyword] = value
    elif isinstance(node.setdefault("allOf", []), list):
        node["allOf"].append(
            {"type": "string", keyword: value} if node.get("type") == "string" else {keyword: value}
        )
