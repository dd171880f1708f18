"""JSON schemas of request and answer types: msgspec's, with the bounds that the code checks beside them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from atomesh.frontend.contract.bounds import REFUSED, REQUIRED, facts_of
from atomesh.frontend.validation import refused_fields

PLACE = "#/components/schemas/{name}"
ANYTHING = {"description": "Any JSON value."}


def describe_types(kinds: Iterable[Any]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each type, and the components that they refer to."""
    wanted = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(
        wanted, schema_hook=lambda _kind: ANYTHING, ref_template=PLACE
    )
    for kind in _structs_in(wanted):
        if (component := components.get(_name_of(kind, components))) is not None:
            _complete(kind, component)
    return dict(zip(wanted, schemas, strict=True)), components


def _complete(kind: type[msgspec.Struct], component: dict[str, Any]) -> None:
    properties = component.get("properties", {})
    for name in _hidden(kind) & properties.keys():
        del properties[name]
    for name, facts in facts_of(kind).items():
        if name in properties:
            properties[name] = {**properties[name], **facts}
    for schema in properties.values():
        if "default" in schema and schema["default"] is None:
            del schema["default"]  # null is absence: it says nothing of the default
    component["required"] = [*component.get("required", ()), *REQUIRED.get(kind, ())]


def _hidden(kind: type[msgspec.Struct]) -> Collection[str]:
    """What is declared only to be refused where it asks for anything."""
    told = {field.name for field in msgspec.structs.fields(kind) if field.type is object}
    refused = refused_fields().union(*(names for base, names in REFUSED.items() if issubclass(kind, base)))
    return refused & told


def _structs_in(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """All message types within, by their classes."""
    seen: dict[type[msgspec.Struct], None] = {}
    waiting = [msgspec.inspect.type_info(kind) for kind in kinds]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                continue
            seen[info.cls] = None
            waiting += [field.type for field in info.fields]
            continue
        waiting += _parts_of(info)
    return list(seen)


def _parts_of(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    match info:
        case msgspec.inspect.UnionType(types):
            return list(types)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return [key, value]
        case msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item):
            return [item]
        case msgspec.inspect.TupleType(item_types=items):
            return list(items)
        case msgspec.inspect.Metadata(type=inner):
            return [inner]
        case _:
            return []


def _name_of(kind: type[msgspec.Struct], components: Mapping[str, Any]) -> str:
    """msgspec names a type by its class, or by its module too where two classes have one name."""
    whole = f"{kind.__module__}.{kind.__qualname__}"
    return whole if whole in components else kind.__name__
