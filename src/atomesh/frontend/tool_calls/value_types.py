"""What a parameter's schema says of a value that is written without quotes: whether it is text."""

import json
from collections.abc import Mapping
from typing import Any

_UNIONS = ("anyOf", "oneOf")
_WORDS = {"True": "true", "False": "false", "None": "null"}


def types_of(schema: object) -> frozenset[str]:
    """The JSON types that a value may have, as far as its schema says so itself; else none."""
    if not isinstance(schema, Mapping):
        return frozenset()
    kinds = schema.get("type", [])
    found = set(kinds) if isinstance(kinds, list) else {kinds}
    for word in _UNIONS:
        found.update(*(types_of(each) for each in schema.get(word, ())))
    if not found:
        found.update(_type_of(value) for value in _constants(schema))
    return frozenset(found)


def is_text(schema: object) -> bool:
    """Whether each value is text, to the letter."""
    return types_of(schema) <= {"string"} and not (isinstance(schema, Mapping) and "$ref" in schema)


def to_json(text: str, schema: object) -> str:
    """The JSON that `text` stands for; text itself where it cannot stand for what the schema wants."""
    bare = text.strip()
    kinds = types_of(schema)
    value = _WORDS.get(bare, bare)
    try:
        kind = _type_of(json.loads(value, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" in kinds and kind not in kinds and not (kind == "integer" and "number" in kinds):
        return json.dumps(text, ensure_ascii=False)
    return value


def _constants(schema: Mapping[str, Any]) -> list[Any]:
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    names = {
        str: "string",
        int: "integer",
        float: "number",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    return names[type(value)]


def _refuse(_constant: str) -> None:
    raise ValueError
