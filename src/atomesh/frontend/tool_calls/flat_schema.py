"""For forms that write parameters one by one: those of an object whose schema says nothing but them."""

from collections.abc import Iterator, Mapping
from typing import Any

from atomesh.errors import InvalidRequestError

_UNDERSTOOD = frozenset(
    ("type", "properties", "required", "additionalProperties", "title", "description", "default", "examples")
)
_DEFINITIONS = ("$defs", "definitions")
_IGNORED = frozenset(("$schema", "$id", "$comment", *_DEFINITIONS))


def flat_properties(name: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Each parameter of the function `name`: its key, its schema with the definitions, and if it is needed.

    Raises InvalidRequestError for a keyword that would be dropped.
    """
    for word in schema:
        if word not in _UNDERSTOOD and word not in _IGNORED:
            raise InvalidRequestError(
                f"the parameters of the function {name!r} use {word[:40]!r} beside their properties, which "
                "this model's form of calls cannot be held to; leave it out, or set tool_choice to 'auto'",
                param="tools",
            )
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
        described = inner if isinstance(inner, Mapping) else {}
        yield key, {**described, **definitions}, key in required
