"""What the two fields ask for, in the engine's words."""

import re
from typing import Any

import msgspec
import pytest

from atomesh.errors import InvalidRequestError
from atomesh.frontend.openai.completion_request import CompletionRequest
from atomesh.frontend.structured_output.asked_grammar import ANY_OBJECT, asked_grammar
from atomesh.protocol.grammar import GrammarSpec

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'


def asked(**fields: Any) -> tuple[GrammarSpec, str] | None:
    return asked_grammar(msgspec.json.decode(msgspec.json.encode(fields), type=CompletionRequest))


def as_format(schema: object, **fields: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_a_free_answer(fields: dict[str, Any]) -> None:
    assert asked(**fields) is None


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", ANY_OBJECT),
        ({"response_format": as_format(SCHEMA, strict=True)}, "json_schema", SCHEMA_TEXT),
        ({"response_format": as_format(SCHEMA, strict=False, description="d")}, "json_schema", SCHEMA_TEXT),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_schema", ANY_OBJECT),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
        ({"structured_outputs": {"choice": ["yes", "no"], "json_object": False}}, "regex", "yes|no"),
    ],
)
def test_what_is_asked_for(fields: dict[str, Any], kind: Any, source: str) -> None:
    param = "structured_outputs" if "structured_outputs" in fields else "response_format"
    assert asked(**fields) == (GrammarSpec(kind=kind, source=source), param)


def test_choices_are_their_own_texts_and_nothing_else() -> None:
    choices = ["a.b", "(x|y)*", "\\d", "[^a-c]{2}", "$1?", "né\n#&~"]
    found = asked(structured_outputs={"choice": choices})
    assert found is not None
    expression = re.compile(found[0].source)
    assert [choice for choice in choices if expression.fullmatch(choice)] == choices
    assert not any(expression.fullmatch(text) for text in ("axb", "x", "7", "zz", "", "1"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": as_format(None)}, "response_format.json_schema.schema"),
        ({"response_format": as_format(SCHEMA, name="a b")}, "response_format.json_schema.name"),
        ({"response_format": as_format(SCHEMA, name=None)}, "response_format.json_schema.name"),
        ({"response_format": {**as_format(SCHEMA), "type": "json_object"}}, "response_format.type"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "start: /a/"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"] * 4097}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice[1]"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "no schema"}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "properties": {}}}},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " *"}},
    ],
)
def test_nothing_in_them_is_dropped_in_silence(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        asked(**fields)
