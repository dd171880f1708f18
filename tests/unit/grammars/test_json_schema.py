"""What schemas say in other words before llguidance reads them, and what of them is refused by name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from atomesh.errors import InvalidRequestError
from atomesh.grammars.compiler import GrammarCompiler
from atomesh.grammars.json_schema.prepared_schema import prepared_schema
from atomesh.grammars.source import grammar_text
from atomesh.grammars.vocabulary import vocabulary_of
from atomesh.protocol.grammar import GrammarSpec
from atomesh.testing.byte_tokenizer import END, ByteTokenizer

PAGE = Path(__file__).parents[3] / "docs" / "structured-output.md"
COMPILER = GrammarCompiler(vocabulary_of(ByteTokenizer(), 259, (END,)))


def admits(schema: dict[str, Any], text: str) -> bool:
    matcher = COMPILER.compile(GrammarSpec(kind="json_schema", source=json.dumps(schema)))
    spelled = list(text.encode())
    return matcher.try_consume_tokens(spelled) == len(spelled) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "object", "properties": {"a": {"type": "null"}}}, '{"a": null}', '{"\\u0061": 1}'),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"type": "string", "format": "date"}, '"2000-02-29"', '"1900-02-29"'),
        ({"type": "string", "format": "time"}, '"23:59:59Z"', '"12:00:60Z"'),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0.25", "0"),
        ({"type": "integer", "minimum": 0, "maximum": 2**64}, "9", "18446744073709551616"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 5}, "5", "6"),
        ({"x-guidance": {"whitespace_pattern": " +"}, "type": "array"}, "[1, 2]", "[1,  2]"),
    ],
)
def test_what_is_held(schema: dict[str, Any], valid: str, invalid: str) -> None:
    assert admits(schema, valid)
    assert not admits(schema, invalid)


def test_one_of_references_that_exclude_each_other_is_any_of() -> None:
    one, other = ({"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab")
    schema: dict[str, Any] = {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": one, "b": other},
    }
    assert "anyOf" in json.loads(prepared_schema(json.dumps(schema)))
    del schema["$defs"]["b"]["required"]
    assert "anyOf" in json.loads(prepared_schema(json.dumps(schema)))
    del schema["$defs"]["a"]["required"]
    assert "oneOf" in json.loads(prepared_schema(json.dumps(schema)))


def test_the_page_says_what_is_refused() -> None:
    row = re.search(r"^\| refused by name \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    names = re.findall(r"`([^`]+)`", row[1])
    assert len(names) >= 20
    for name in names:
        with pytest.raises(InvalidRequestError, match=re.escape(f"'{name}'")):
            admits({name: {"a": []}}, "1")


def test_the_page_says_what_is_held() -> None:
    row = re.search(r"^\| `format` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    for name in re.findall(r"`([^`]+)`", row[1]):
        assert not admits({"type": "string", "format": name}, '""')
    with pytest.raises(InvalidRequestError, match="'format' is 'wizard'"):
        admits({"type": "string", "format": "wizard"}, '""')


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("pattern", {"type": "string", "pattern": "^a\\"}),
        ("patternProperties", {"patternProperties": {"^a\\": {"type": "null"}}}),
    ],
)
def test_a_pattern_that_ends_with_half_an_escape_is_refused_by_name(keyword: str, schema: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{keyword}'.*half an escape"):
        grammar_text(GrammarSpec(kind="json_schema", source=json.dumps(schema)))
