"""Whether a function's parameters are a JSON schema of an object; not whether a grammar can obey it."""

from collections.abc import Mapping
from typing import Any

from atomesh.errors import InvalidRequestError

MAX_DEPTH = 64
_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_TEXTS = ("description", "title", "pattern", "format", "$ref", "$schema", "$id")


def check_parameters(schema: Mapping[str, Any], place: str) -> None:
    """Raises InvalidRequestError with the path of what is no schema; `place` is the schema's own."""
    kind = schema.get("type", "object")
    if kind != "object":
        raise _bad(f"{place}.type", f"is {kind!r:.40}", "parameters are an object: set it to 'object'")
    _check(schema, place, 0)


def _check(schema: object, place: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _bad(place, f"is {schema!r:.40}", "a schema is an object, true or false")
    if depth > MAX_DEPTH:
        raise _bad(place, f"is nested deeper than {MAX_DEPTH} levels", "flatten it")
    _check_words(schema, place)
    _check_inner(schema, place, depth)


def _check_words(schema: Mapping[str, Any], place: str) -> None:
    if "type" in schema:
        _check_type(schema["type"], f"{place}.type")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise _bad(f"{place}.required", f"is {required!r:.40}", "it must be a list of property names")
    enum = schema.get("enum", [None])
    if not isinstance(enum, list) or not enum:
        raise _bad(f"{place}.enum", f"is {enum!r:.40}", "it must be a list with at least one value")
    for name in _TEXTS:
        if not isinstance(schema.get(name, ""), str):
            raise _bad(f"{place}.{name}", f"is {schema[name]!r:.40}", "it must be a text")


def _check_type(kind: object, place: str) -> None:
    kinds = kind if isinstance(kind, list) else [kind]
    for each in kinds:
        if not isinstance(each, str) or each not in _TYPES:
            raise _bad(place, f"is {each!r:.40}", f"it must be one of {', '.join(sorted(_TYPES))}")
    if not kinds:
        raise _bad(place, "is an empty list", "name at least one type")


def _check_inner(schema: Mapping[str, Any], place: str, depth: int) -> None:
    for word in _SCHEMAS_BY_NAME:
        inner = schema.get(word, {})
        if not isinstance(inner, Mapping):
            raise _bad(f"{place}.{word}", f"is {inner!r:.40}", "it must be an object of schemas by name")
        for name, each in inner.items():
            _check(each, f"{place}.{word}.{name[:64]}", depth + 1)
    for word in _LISTS_OF_SCHEMAS:
        if word in schema and not (isinstance(schema[word], list) and schema[word]):
            raise _bad(f"{place}.{word}", f"is {schema[word]!r:.40}", "it must be a list of schemas")
        for index, each in enumerate(schema.get(word, ())):
            _check(each, f"{place}.{word}[{index}]", depth + 1)
    for word in _SCHEMAS:
        if word in schema:
            _check(schema[word], f"{place}.{word}", depth + 1)
    items = schema.get("items", True)
    for index, each in enumerate(items if isinstance(items, list) else [items]):
        _check(each, f"{place}.items[{index}]" if isinstance(items, list) else f"{place}.items", depth + 1)


def _bad(place: str, what: str, remedy: str) -> InvalidRequestError:
    return InvalidRequestError(f"{place} {what}; {remedy}", param=place)
