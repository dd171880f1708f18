"""Only objects of which one place tells all properties are closed: no schema loses its answers."""

from typing import Any

import pytest

from atomesh.frontend.tool_calls.closed_schema import closed

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
B: dict[str, Any] = {"properties": {"b": {}}, "required": ["b"]}
SHUT = {**A, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, SHUT),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        ({"type": "array", "items": A}, {"type": "array", "items": SHUT}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [SHUT, {"type": "null"}]}),
        ({"additionalProperties": A}, {"additionalProperties": SHUT}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": SHUT}}),
        (
            {"properties": {"x": A, "allOf": {"type": "string"}}},
            {"properties": {"x": SHUT, "allOf": {"type": "string"}}, "additionalProperties": False},
        ),
    ],
)
def test_an_object_that_lists_its_properties_gets_no_others(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["elsewhere"]},
        {**A, "minProperties": 2},
        {**A, "enum": [{"b": 1}]},
        {"allOf": [A, B]},
        {"oneOf": [A, B]},
        {**A, "anyOf": [B, {"required": ["a"]}]},
        {"required": ["b"], "anyOf": [A, B]},
        {"properties": {"x": A}, "allOf": [{"properties": {"x": B}}]},
        {**A, "$ref": "#/$defs/B", "$defs": {"B": B}},
        {"properties": {"x": {"allOf": [{"$ref": "#/$defs/A"}, B]}}, "$defs": {"A": A}},
    ],
)
def test_one_that_may_have_others_stays_open(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema
