"""docs/api.md from the OpenAPI document: python tools/api_page.py --write docs/api.md"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atomesh.testing.gateway_document import gateway_document

HEAD = """# The API

This page is written by `tools/api_page.py` from the document that a server serves at
`GET /openapi.json` (OpenAPI 3.1), which is made of the routes that it has and the types that it decodes.
A test holds the page to it.

A key goes as `Authorization: Bearer KEY` or `x-api-key: KEY`, where the operator asks for keys; the
operator's routes take the admin token alone ([operations.md](operations.md)). Errors are
`{"error": {"message", "type", "param", "code"}}`, at and below `/v1/messages` as Anthropic has them. Further
pages: [responses.md](responses.md), [messages.md](messages.md), [tool-calls.md](tool-calls.md),
[reasoning.md](reasoning.md).
"""
TITLES = {
    "generation": "Answers",
    "text": "Text and tokens",
    "models": "Models",
    "status": "Status",
    "operator": "For the operator, with the admin token",
    "workers": "For workers, with proof of the cluster's secret",
}
COLUMNS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "tokenize": "/tokenize",
}
BOUND_WORDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}"}
COUNT_WORDS = {
    "maxItems": "at most {} items",
    "maxLength": "at most {} characters",
    "maxProperties": "at most {} ids",
}
INT64 = {2**63 - 1: "2⁶³ − 1", -(2**63): "−2⁶³", 2**31 - 1: "2³¹ − 1"}

Document = Mapping[str, Any]


def page(document: Document) -> str:
    sections = [HEAD, "## Routes\n", *_routes(document), *_fields(document)]
    return "\n".join(sections)


def _routes(document: Document) -> Iterator[str]:
    for tag, title in TITLES.items():
        rows = [
            (f"`{method.upper()} {path}`", told["summary"], "yes" if _is_streamed(told) else "")
            for path, methods in document["paths"].items()
            for method, told in methods.items()
            if tag in told["tags"]
        ]
        if rows:
            yield f"### {title}\n\n{_table(('route', 'what', 'streams'), rows)}\n"


def _is_streamed(told: Mapping[str, Any]) -> bool:
    return "text/event-stream" in told["responses"].get("200", {}).get("content", {})


def _fields(document: Document) -> Iterator[str]:
    """A row for each field and what it may be, a mark under each API that takes it so."""
    rows: dict[tuple[str, str], set[str]] = {}
    for column, path in COLUMNS.items():
        schema = _body(document, path)
        for name, told in schema["properties"].items():
            words = _kind(told) + (", required" if name in schema["required"] else "")
            rows.setdefault((name, words), set()).add(column)
    table = [
        (f"`{name}`", words, *("✓" if column in taken else "" for column in COLUMNS))
        for (name, words), taken in sorted(rows.items())
    ]
    yield "## Fields of requests\n"
    yield "Null is absence. What is not named here is ignored and counted, or refused by name.\n"
    yield _table(("field", "what it may be", *COLUMNS), table) + "\n"


def _body(document: Document, path: str) -> Mapping[str, Any]:
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "$ref"
    ]
    schema: Mapping[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


def _kind(told: Mapping[str, Any]) -> str:
    kinds = [_words(one) for one in told.get("anyOf", [told])]
    words = [" or ".join(kind for kind in kinds if kind != "null")]
    words += [" ".join(text.format(_number(told[key])) for key, text in BOUND_WORDS.items() if key in told)]
    words += [text.format(told[key]) for key, text in COUNT_WORDS.items() if key in told]
    return ", ".join(filter(None, words))


def _words(one: Mapping[str, Any], *, are_many: bool = False) -> str:
    if "anyOf" in one:
        return " or ".join(_words(inner, are_many=are_many) for inner in one["anyOf"])
    if one.get("type") == "array":
        return f"{'lists' if are_many else 'list'} of {_words(one.get('items', {}), are_many=True)}"
    kind = "object" if "$ref" in one else one.get("type")
    if kind is None:
        return "anything"
    return f"{kind}s" if are_many else str(kind)


def _number(value: float) -> str:
    return INT64.get(int(value), f"{value:g}") if value == int(value) else f"{value:g}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page; without it, the document goes to stdout")
    options = parser.parse_args()
    document = gateway_document()
    if options.write is None:
        print(json.dumps(document, indent=2))
    else:
        options.write.write_text(page(document))


if __name__ == "__main__":
    main()
