"""`oneOf` whose schemas exclude each other is `anyOf`, which a grammar can say.

llguidance proves that for schemas that are written out; here they may be references, as pydantic writes them,
and any constants.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atomesh.grammars.json_schema.walk import Node, follow

MAX_PAIRED = 100
MAX_CONJUNCTS = 32
_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})


def loosen_one_of(root: Node, node: Node) -> None:
    """Rename it where that changes nothing."""
    members = node.get("oneOf")
    if not isinstance(members, list) or "anyOf" in node or not _exclude_each_other(root, members):
        return
    renamed = {"anyOf" if name == "oneOf" else name: value for name, value in node.items()}
    node.clear()
    node.update(renamed)


@dataclass(frozen=True, slots=True)
class _Told:
    """What must be true of an instance: of one of `kinds`; one of `values`, unless that is None."""

    kinds: frozenset[str]
    values: frozenset[str] | None
    conjuncts: Sequence[Node]

    def property(self, root: Node, name: str) -> "_Told":
        inner = [
            one["properties"][name]
            for one in self.conjuncts
            if isinstance(one.get("properties"), dict) and isinstance(one["properties"].get(name), dict)
        ]
        return _told(root, *inner)

    def required(self) -> Iterator[str]:
        for one in self.conjuncts:
            if isinstance(one.get("required"), list):
                yield from (name for name in one["required"] if isinstance(name, str))

    def forbids(self, name: str) -> bool:
        return any(
            one.get("additionalProperties") is False
            and "patternProperties" not in one
            and name not in (one.get("properties") or {})
            for one in self.conjuncts
        )


def _exclude_each_other(root: Node, members: list[Any]) -> bool:
    if not all(isinstance(member, dict) for member in members):
        return False
    told = [_told(root, member) for member in members]
    values = [one.values for one in told if one.values is not None]
    if len(values) == len(told):
        return len(frozenset().union(*values)) == sum(map(len, values))
    return len(told) <= MAX_PAIRED and all(
        _exclude(root, one, other) for one, other in itertools.combinations(told, 2)
    )


def _exclude(root: Node, one: _Told, other: _Told) -> bool:
    kinds = one.kinds & other.kinds
    if not kinds or _differ(one, other):
        return True
    if kinds != {"object"}:
        return False
    names = dict.fromkeys([*one.required(), *other.required()])
    return any(
        one.forbids(name)
        or other.forbids(name)
        or _differ(one.property(root, name), other.property(root, name))
        for name in names
    )


def _differ(one: _Told, other: _Told) -> bool:
    if one.values is None or other.values is None:
        return not one.kinds & other.kinds
    return not one.values & other.values


def _told(root: Node, *schemas: Node) -> _Told:
    conjuncts = _conjuncts(root, schemas)
    kinds, values = _ALL, None
    for one in conjuncts:
        if "type" in one:
            kinds &= _kinds(one["type"])
        for told in _values(one):
            values = told if values is None else values & told
    return _Told(kinds, values, conjuncts)


def _conjuncts(root: Node, schemas: Sequence[Node]) -> list[Node]:
    """These, what they refer to, and their `allOf`; some of them, if they are many."""
    found: list[Node] = []
    waiting: list[Any] = list(schemas)
    while waiting and len(found) < MAX_CONJUNCTS:
        one = waiting.pop()
        if not isinstance(one, dict) or any(one is known for known in found):
            continue
        found.append(one)
        waiting.append(follow(root, one.get("$ref")))
        if isinstance(one.get("allOf"), list):
            waiting += one["allOf"]
    return found


def _kinds(told: object) -> frozenset[str]:
    """An integer is a number. What is no type at all is left for others to refuse."""
    names = told if isinstance(told, list) else [told]
    return frozenset("number" if name == "integer" else name for name in names if isinstance(name, str))


def _values(node: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    if "const" in node:
        yield frozenset([_canonical(node["const"])])
    if isinstance(node.get("enum"), list):
        yield frozenset(map(_canonical, node["enum"]))


def _canonical(value: object) -> str:
    """The same for equal values: 1 is 1.0, and an object's members have no order."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(float(value))
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(name)}:{_canonical(value[name])}' for name in sorted(value))}}}"
    return str(value)
