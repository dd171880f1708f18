"""A schema as llguidance may have it: what it would pass over in silence is put in other words or refused."""

from collections.abc import Collection
from typing import Any

import msgspec

from atomesh.errors import InvalidRequestError
from atomesh.grammars.json_schema.formats import spell_out_format
from atomesh.grammars.json_schema.numbers import bound_numbers
from atomesh.grammars.json_schema.one_of import loosen_one_of
from atomesh.grammars.json_schema.patterns import check_patterns
from atomesh.grammars.json_schema.walk import LISTS, MAPS, ONE, Node, locate, subschemas

# Of drafts that are no more, so that llguidance takes them for names without a meaning.
OBSOLETE = ("divisibleBy", "disallow", "extends")
# Which draft a schema is of only makes llguidance forget keywords; its own options are ours to set.
_DROPPED = ("$schema", "x-guidance")


def prepared_schema(source: str) -> str:
    """Raises InvalidRequestError, which names the keyword."""
    schema = msgspec.json.decode(source)
    if not isinstance(schema, dict):
        return source
    try:
        _prepare_all(schema)
        return msgspec.json.encode(schema).decode()
    except RecursionError:
        raise InvalidRequestError("a value in it is nested too deeply; simplify it") from None


def _prepare_all(root: Node) -> None:
    nodes = subschemas(root)
    anchors = {node["$anchor"] for node in nodes if isinstance(node.get("$anchor"), str)}
    for node in nodes:
        if node is not root and isinstance(node.get("$id"), str):
            raise InvalidRequestError("the schema's keyword '$id' is held at its top alone; remove it inside")
        _check_reference(root, node.get("$ref"), anchors)
    for node in nodes:
        _prepare(root, node)


def _prepare(root: Node, node: Node) -> None:
    for name in _DROPPED:
        node.pop(name, None)
    for name in OBSOLETE:
        if name in node:
            raise InvalidRequestError(f"the schema's keyword {name!r} is not supported; remove it")
    if node.get("uniqueItems") is False:
        del node["uniqueItems"]
    _check_shapes(node)
    check_patterns(node)
    _check_min_properties(node)
    bound_numbers(node)
    spell_out_format(node)
    loosen_one_of(root, node)


def _check_shapes(node: Node) -> None:
    for name in ("enum", "anyOf", "oneOf"):
        if node.get(name) == []:
            raise InvalidRequestError(
                f"the schema's {name!r} is empty, so that nothing satisfies it; fill it"
            )
    for name, value in node.items():
        if not _has_schemas(name, value):
            raise InvalidRequestError(f"the schema's {name!r} has something in it that is no schema")


def _has_schemas(name: str, value: Any) -> bool:
    """Whether the keyword, if it is one for schemas, has nothing but schemas in it."""
    inside = [value]
    if name in LISTS and isinstance(value, list):
        inside = value
    elif name in MAPS and isinstance(value, dict):
        inside = list(value.values())
    elif name not in ONE:
        return name not in LISTS and name not in MAPS
    return all(isinstance(one, dict | bool) for one in inside)


def _check_reference(root: Node, reference: Any, anchors: Collection[str]) -> None:
    if not isinstance(reference, str):
        return
    if not reference.startswith("#"):
        raise InvalidRequestError(
            f"the schema's '$ref' is {reference[:80]!r}; nothing outside the schema is ever read: "
            "put it into its '$defs'"
        )
    if locate(root, reference) is None and reference[1:] not in anchors:
        raise InvalidRequestError(f"the schema's '$ref' is {reference[:80]!r}, which names nothing in it")


def _check_min_properties(node: Node) -> None:
    """Names that are free may come twice, and are one property then."""
    least, required = node.get("minProperties"), node.get("required")
    if not isinstance(least, int):
        return
    sure = len({name for name in required if isinstance(name, str)}) if isinstance(required, list) else 0
    if least > sure + 1:
        raise InvalidRequestError(
            f"the schema's 'minProperties' is {least}; it is held up to one more than are required, "
            f"here up to {sure + 1}: require them by name"
        )
