"""docs/api.md is what tools/api_page.py makes of the routes and types that there are."""

from pathlib import Path

import pytest
from api_page import page

from atomesh.testing.gateway_document import gateway_document

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def document(**properties: object) -> dict[str, object]:
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}},
    }
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize")
    told = {"summary": "Ask", "tags": ["text"], "responses": {}, "requestBody": body}
    return {
        "paths": {path: {"post": told} for path in paths},
        "components": {"schemas": {"Asked": {"properties": properties, "required": ["must"]}}},
    }


def test_the_page_is_written_from_the_document_of_today() -> None:
    """If not: python tools/api_page.py --write docs/api.md"""
    assert PAGE.read_text() == page(gateway_document())


@pytest.mark.parametrize(
    ("name", "schema", "words"),
    [
        (
            "a",
            {"anyOf": [{"type": "number"}, {"type": "null"}], "minimum": 0.0, "maximum": 2.0},
            "number, from 0 to 2",
        ),
        ("a", {"type": "number", "exclusiveMinimum": 0.0}, "number, above 0"),
        ("a", {"type": "integer", "maximum": 2**63 - 1}, "integer, to 2⁶³ − 1"),
        (
            "a",
            {"type": "array", "items": {"type": "string"}, "maxItems": 64},
            "list of strings, at most 64 items",
        ),
        (
            "a",
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array"}]}},
            "list of strings or lists of anything",
        ),
        ("must", {"$ref": "#/components/schemas/Other"}, "object, required"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_field_is_told_in_words(name: str, schema: object, words: str) -> None:
    assert f"| `{name}` | {words} | ✓ | ✓ | ✓ | ✓ | ✓ |" in page(document(**{name: schema}))
