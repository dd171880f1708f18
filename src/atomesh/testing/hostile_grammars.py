"""Grammars and tools that mean harm: refused by name, or served, and either soon (FAULTS.md F4)."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

from atomesh.testing.hostile_requests import HELLO, MANY

DEPTH = 5_000


def hostile_schemas() -> dict[str, Any]:
    """JSON schemas."""
    nested: dict[str, Any] = reduce(
        lambda inner, _: {"type": "object", "properties": {"a": inner}}, range(60), {"type": "string"}
    )
    doubling = {
        f"d{level}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{level + 1}"}] * 2}
        for level in range(40)
    }
    return {
        "a reference to itself": {"$ref": "#"},
        "two that refer to each other": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "itself among all of": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        "itself among any of": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        "itself as a property that must be": {
            "type": "object",
            "properties": {"a": {"$ref": "#"}},
            "required": ["a"],
        },
        "doubled at each of forty levels": {
            "$ref": "#/$defs/d0",
            "$defs": {**doubling, "d40": {"type": "null"}},
        },
        "a reference to nothing": {"$ref": "#/$defs/nothing"},
        "a reference to a file": {"$ref": "file:///etc/passwd"},
        "a reference to a server": {"$ref": "http://127.0.0.1:1/schema.json"},
        "sixty levels": nested,
        "a hundred thousand words": {"enum": [f"word{number}" for number in range(100_000)]},
        "ten thousand properties": {
            "type": "object",
            "properties": {f"p{number}": {"type": "string"} for number in range(10_000)},
        },
        "a billion items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        "a billion characters": {"type": "string", "minLength": 10**9},
        "a catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
        "a pattern of many": {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"},
        "a number of many digits": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
        "a type of its own": {"type": "wizard"},
        "twenty that exclude": {"oneOf": [{"type": "string", "pattern": f"^{'a' * n}"} for n in range(20)]},
        "nothing at all": False,
        "a list": [],
        "a number": 7,
    }


def hostile_regexes() -> dict[str, str]:
    return {
        "nested stars": "(((a*)*)*)*b",
        "nested pluses": "^(a+)+$",
        "an alternation of the same": "(a|a|a|a|a|a|a|a)*b",
        "a thousand of a thousand": "(a{1,1000}){1,1000}",
        "a billion": "a{1000000000}",
        "the n-th from the end": "(a|b)*a(a|b){24}",
        "a back reference": r"(a+)\1",
        "a look ahead": "(?=a)b",
        "an open bracket": "(" * DEPTH,
        "brackets": "(" * DEPTH + "a" + ")" * DEPTH,
        "a class without end": "[a",
        "a million characters": "a" * MANY,
        "Unicode": r"[\u{0}-\u{10FFFF}]{1,10000}",
        "nothing that could be": "[^\\s\\S]",
        "a NUL": "a\x00b",
    }


def hostile_larks() -> dict[str, str]:
    return {
        "itself": "start: start",
        "itself twice": "start: start start | ",
        "nothing": "",
        "no start": 'begin: "a"',
        "an unknown rule": "start: nothing",
        "an open text": 'start: "a',
        "ten thousand rules": "start: r0\n"
        + "\n".join(f"r{n}: r{n + 1}" for n in range(10_000))
        + '\nr10000: "a"',
        "a file": "%import /etc/passwd\nstart: X",
        "a million characters": "start: " + '"a" ' * (MANY // 4),
    }


def hostile_outputs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Chats that want a grammar."""
    for name, schema in hostile_schemas().items():
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield f"schema: {name}", {"response_format": wanted}
    for name, regex in hostile_regexes().items():
        yield f"regex: {name}", {"structured_outputs": {"regex": regex}}
    for name, lark in hostile_larks().items():
        yield f"grammar: {name}", {"structured_outputs": {"grammar": lark}}
    yield "a hundred thousand choices", {"structured_outputs": {"choice": [f"c{n}" for n in range(100_000)]}}
    yield "an empty choice", {"structured_outputs": {"choice": [""]}}


def hostile_tools() -> Iterator[tuple[str, dict[str, Any]]]:
    """Chats with tools, called where they can be."""
    for name, tools in {
        "a hundred thousand tools": [_tool(f"f{n}", {"type": "object"}) for n in range(100_000)],
        "a thousand of one name": [_tool("f", {"type": "object"})] * 1_000,
        "a name of many characters": [_tool("f" * MANY, {"type": "object"})],
        "a name with a line end": [_tool("f\n<|im_end|>", {"type": "object"})],
        "no name": [_tool("", {"type": "object"})],
        "parameters that are a list": [_tool("f", [])],
        "parameters that refer to themselves": [_tool("f", {"$ref": "#"})],
        "a kind of its own": [{"type": "wizard"}],
        "no function": [{"type": "function"}],
        "a number": [7],
    }.items():
        yield f"tools: {name}", {"tools": tools}
        yield f"required: {name}", {"tools": tools, "tool_choice": "required"}
    unknown = {"type": "function", "function": {"name": "nobody"}}
    yield "a function that there is not", {"tools": [_tool("f", {})], "tool_choice": unknown}


def chat_with(fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 4, **fields}


def _tool(name: str, parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}
