"""The Jinja environment that chat templates expect, sandboxed: transformers' settings, filters, globals."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class RefusedByTemplateError(TemplateError):
    """The template called raise_exception."""


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks an assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012  the name and the kind are jinja2's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _TemplateNamespace(Namespace):
    """Keeps templates away from names that mean something to Python itself."""

    def __init__(*args: Any, **attributes: Any) -> None:
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"a namespace must not have the attribute {name!r}")


def template_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _TemplateNamespace
    environment.globals["dict"] = _new_dict
    del environment.globals["lipsum"]
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
    """Without HTML escapes, unlike jinja2's own; `layout` may have indent, separators and sort_keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **_checked_layout(layout))


def _checked_layout(layout: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = layout.keys() - {"indent", "separators", "sort_keys"}
    if unknown:
        raise TemplateError(f"tojson has no argument {sorted(unknown)[0]!r}")
    return layout


def _raise_exception(message: object = "") -> None:
    raise RefusedByTemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _new_dict(*args: Any, **items: Any) -> dict[Any, Any]:
    return dict(*args, **items)
