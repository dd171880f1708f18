"""For forms that write parameters one by one: those of an object whose schema says nothing but them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atomesh.errors import InvalidRequestError

_DEFINITIONS = ("$defs", "definitions")
DESCRIPTIVE = frozenset(
    ("title", "description", "default", "examples", "$schema", "$id", "$comment", *_DEFINITIONS)
)
_UNDERSTOOD = DESCRIPTIVE | {"type", "properties", "required", "additionalProperties"}


def cannot_be_held(what: str, keyword: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} use {keyword[:40]!r}, which this model's form of calls cannot be held to; leave it out, or "
        "set tool_choice to 'auto'",
        param="tools",
    )


def flat_properties(
    name: str, schema: Mapping[str, Any], keys: re.Pattern[str]
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each parameter of the function `name`: its key, its schema with the definitions, and if it is needed.

    Raises InvalidRequestError for a keyword that would be dropped, and for a key that does not match `keys`.
    """
    for word in schema:
        if word not in _UNDERSTOOD:
            raise cannot_be_held(f"the parameters of the function {name!r}", word)
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = frozenset(schema.get("required", ()))
    for key in required.difference(properties):
        raise InvalidRequestError(
            f"the function {name!r} requires the parameter {key[:64]!r}, which is none of its properties; "
            "describe it there",
            param="tools",
        )
    definitions = {word: schema[word] for word in _DEFINITIONS if word in schema}
    for key, inner in properties.items():
        if not keys.fullmatch(key):
            raise InvalidRequestError(
                f"the function {name!r} has the parameter {key[:64]!r}, which this model's form of calls has "
                f"no way to write; its name must match {keys.pattern}",
                param="tools",
            )
        described = inner if isinstance(inner, Mapping) else {}
        yield key, {**described, **definitions}, key in required
