"""A function takes what it declares: a model that is held to a call may invent no further parameters.

Most schemas of parameters leave `additionalProperties` out, which in JSON schema allows any. The function has
no use for them, and a small model goes on inventing until its limit. So where an object lists its properties
and says nothing of others, it gets no others, as in vLLM's grammars (xgrammar's strict mode). What fits a
closed schema fits the schema itself. `additionalProperties: true` keeps an object open.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_INSIDE = ("items", "additionalProperties", "additionalItems")
_LISTS = ("prefixItems", "anyOf")
_ELSEWHERE = ("anyOf", "$ref", "not", "if")
# What tells that an object has, or may have, what is not among its properties.
_OTHERS = (
    "additionalProperties",
    "unevaluatedProperties",
    "patternProperties",
    "minProperties",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "const",
)


def closed(schema: Schema) -> Schema:
    """`schema` with those of its objects closed that are described in one place alone."""
    nodes = list(_nodes(schema))
    if any("$ref" in node for node in nodes) and any(_combines(node) for node in nodes):
        return schema
    return dict(_closed(schema))


def _combines(node: Schema) -> bool:
    """Whether one object may be described here and elsewhere, or must not be what another place says."""
    if "allOf" in node or "oneOf" in node:
        return True
    is_elsewhere = any(word in node for word in _ELSEWHERE)
    return is_elsewhere and any(word in node for word in ("properties", "required", *_OTHERS))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping) or _combines(schema):
        return schema
    inner = dict(schema)
    for word in _BY_NAME:
        if word in schema:
            inner[word] = {name: _closed(each) for name, each in schema[word].items()}
    for word in _INSIDE:
        if word in schema:
            inner[word] = _closed(schema[word])
    for word in _LISTS:
        if word in schema:
            inner[word] = [_closed(each) for each in schema[word]]
    if _is_silent_on_others(schema):
        inner["additionalProperties"] = False
    return inner


def _is_silent_on_others(schema: Schema) -> bool:
    return (
        "properties" in schema
        and not any(word in schema for word in _OTHERS)
        and set(schema.get("required", ())) <= set(schema["properties"])
    )


def _nodes(schema: Any) -> Iterator[Schema]:
    """It and all schemas inside it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _nodes(each)
    elif isinstance(schema, Mapping):
        yield schema
        for word in _BY_NAME:
            yield from _nodes(list(schema.get(word, {}).values()))
        for word in (*_INSIDE, *_LISTS, "allOf", "oneOf", "not", "if"):
            yield from _nodes(schema.get(word))
