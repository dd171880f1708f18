"""How deep a grammar may lead: its compiler follows references by recursion, on a stack that ends."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from atomesh.grammars.json_schema.walk import locate
from atomesh.protocol.grammar import GrammarSpec

MAX_LEVELS = 1000  # llguidance 1.9 needs 3.5 KiB of stack for each, of 8 MiB
_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_]\w*[^:\n\"/]*:", re.MULTILINE)


def check_depth(spec: GrammarSpec) -> None:
    """Raises ValueError for a grammar that might lead deeper than MAX_LEVELS."""
    match spec.kind:
        case "json_schema":
            found = _levels_of_schema(_decode(spec.source))
        case "lark":
            found = len(_RULE.findall(spec.source)) + spec.source.count("{")
        case "regex":
            return  # its parser counts the brackets itself
    if found > MAX_LEVELS:
        raise ValueError(
            f"its references may lead {found} levels deep; the limit is {MAX_LEVELS}: use fewer definitions"
        )


def _decode(source: str) -> Any:
    """Raises ValueError for what is no JSON, and for what is nested too deeply."""
    try:
        return msgspec.json.decode(source)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError(f"it is more than {MAX_LEVELS} levels deep; simplify it") from None


def _levels_of_schema(schema: Any) -> int:
    """Its own, and those of each definition that is referred to: no way through it is longer."""
    containers = _containers_in(schema)
    levels: dict[int, int] = {}
    for value in reversed(containers):  # what is inside comes first
        levels[id(value)] = 1 + max((levels.get(id(inner), 0) for inner in _inside(value)), default=0)
    whole = levels.get(id(schema), 0)
    targets = {
        value["$ref"]
        for value in containers
        if isinstance(value, dict) and isinstance(value.get("$ref"), str)
    }
    return whole + sum(levels.get(id(locate(schema, target)), whole) for target in targets)


def _containers_in(schema: Any) -> list[Any]:
    """All objects and lists, each before those inside it."""
    found, waiting = [], [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            found.append(value)
            waiting += _inside(value)
    return found


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
