"""Over a JSON schema's subschemas, wherever the keywords of draft 2020-12 and of older drafts put them."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Node = dict[str, Any]

ONE = ("additionalProperties", "items", "additionalItems")
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", "$defs", "definitions")


def subschemas(root: Node) -> list[Node]:
    """The root, all schemas inside it, and whatever else is referred to; each once, outer ones first."""
    found: dict[int, Node] = {}
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        waiting += _inside(node)
        target = follow(root, node.get("$ref"))
        if target is not None:
            waiting.append(target)
    return list(found.values())


def follow(root: Node, reference: object) -> Node | None:
    """The schema that a pointer such as `#/$defs/a` names; None for another reference, and for a boolean."""
    target = locate(root, reference)
    return target if isinstance(target, dict) else None


def locate(root: Node, reference: object) -> Any:
    """What the pointer names, whatever it is (RFC 6901); None where there is nothing."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    value: Any = root
    for word in unquote(reference[1:]).split("/")[1:]:
        name = word.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _inside(node: Node) -> Iterator[Node]:
    for value in _values(node):
        if isinstance(value, dict):
            yield value


def _values(node: Node) -> Iterator[Any]:
    for name in ONE:
        yield node.get(name)
    for name in LISTS:
        if isinstance(node.get(name), list):
            yield from node[name]
    for name in MAPS:
        if isinstance(node.get(name), dict):
            yield from node[name].values()
