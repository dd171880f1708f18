"""Schemas that mean harm are refused by name or obeyed, and the server serves on (FAULTS.md F4)."""

import json
import re
from typing import Any

import pytest

from atomesh.testing.pd_bench import PDBench

DEEP = 100_000
MANY = 1_000_000


def nested(text: str, depth: int) -> str:
    """`text` with its `@` replaced by itself, time and again."""
    before, after = text.split("@")
    return f"{before * depth}true{after * depth}"


def doubling(levels: int) -> dict[str, Any]:
    definitions = {
        f"d{level}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{level + 1}"}] * 2, "minItems": 2}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{levels}": {"type": "null"}}}


SIZE = r"\d+ bytes; the limit|request body|larger than"
LIMIT = r"limit|too large|deep"
REFUSED: dict[str, tuple[Any, str]] = {
    "itself": ({"$ref": "#"}, r"no text satisfies|\$ref"),
    "in a ring": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        r"no text satisfies|\$ref",
    ),
    "itself, required": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, LIMIT),
    "itself beside a bound": ({"$ref": "#", "minimum": 5}, r"\$ref"),
    "a server": ({"$ref": "http://127.0.0.1:1/schema"}, r"\$ref"),
    "a file": ({"$ref": "file:///etc/passwd"}, r"\$ref"),
    "a billion items": ({"type": "array", "items": {"type": "null"}, "minItems": 10**9}, LIMIT),
    "a billion by pattern": ({"type": "string", "pattern": "^a{1000000000}$"}, rf"pattern|{LIMIT}"),
    "a prime": ({"type": "integer", "multipleOf": 999_983}, LIMIT),
    "a hundred thousand properties": (
        {"type": "object", "properties": {f"p{number}": {} for number in range(100_000)}},
        SIZE,
    ),
    "a million words": ({"enum": [f"w{number}" for number in range(MANY)]}, SIZE),
    "ten thousand properties": (
        {"type": "object", "properties": {f"p{number}": {} for number in range(10_000)}},
        LIMIT,
    ),
    "properties that are deep": (
        nested('{"properties": {"a": @}}', DEEP),
        "deep|depth|nested|recursion|bytes",
    ),
    "items that are deep": (nested('{"items": @}', 10_000), "deep|depth|nested|recursion"),
    "a list that is deep": ('{"const": ' + "[" * DEEP + "]" * DEEP + "}", "deep|depth|nested|recursion"),
    "all of many": ({"allOf": [{"pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(9, 30)]}, LIMIT),
    "oneOf a thousand": ({"oneOf": [{"minimum": n} for n in range(1000)]}, rf"oneOf|{LIMIT}"),
}
HELD: dict[str, Any] = {
    "a million characters at least": {"type": "string", "minLength": MANY},
    "a billion characters at least": {"type": "string", "minLength": 10**9},
    "a billion characters at most": {"type": "string", "maxLength": 10**9},
    "a thousand of a thousand": {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
    "a catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
    "itself among others": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    "doubled at each of ten levels": doubling(10),
    "a billion items at most": {"type": "array", "items": {"type": "null"}, "maxItems": 10**9},
    "two thousand equal properties": {"enum": [f"{'x' * 50}{n}" for n in range(2000)]},
}


def ask(bench: PDBench, schema: object) -> tuple[int, str]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    answer = bench.client.complete(
        "x", structured_outputs={"json": text}, max_tokens=8, temperature=1, seed=1
    )
    return answer.status, answer.message


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(bench: PDBench, name: str) -> None:
    schema, words = REFUSED[name]
    status, message = ask(bench, schema)
    assert status in (400, 413)
    assert len(message) < 2000
    assert re.search(words, message), message


@pytest.mark.parametrize("name", HELD)
def test_what_is_held(bench: PDBench, name: str) -> None:
    assert ask(bench, HELD[name]) == (200, "")


def test_it_serves_on(bench: PDBench) -> None:
    assert ask(bench, {"type": "boolean"}) == (200, "")
    bench.check()
