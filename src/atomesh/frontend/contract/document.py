"""The OpenAPI 3.1 document of the routes that an application has (https://spec.openapis.org/oas/v3.1.0)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.routing import Route

from atomesh import __version__
from atomesh.frontend.contract.answers import ErrorBody
from atomesh.frontend.contract.anthropic_answers import AnthropicErrorBody
from atomesh.frontend.contract.operation import GENERATING, Key, Operation
from atomesh.frontend.contract.operations import OPERATIONS
from atomesh.frontend.contract.schemas import describe_types
from atomesh.frontend.contract.told_route import ToldRoute
from atomesh.frontend.http.error_shapes import is_anthropic

_CONVERTER = re.compile(r":\w+(?=\})")
_PARAMETER = re.compile(r"\{(\w+)\}")
_SCHEMES = {
    "apiKey": {"type": "http", "scheme": "bearer", "description": "Where the operator asks for keys."},
    "apiKeyHeader": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "adminToken": {"type": "http", "scheme": "bearer", "description": "The operator's."},
}
_ANY_KEY: list[dict[str, list[str]]] = [{}, {"apiKey": []}, {"apiKeyHeader": []}]
_UNTOLD = Operation("", "generation", answer=dict, is_streamed=True, refusals=GENERATING)
Schemas = Mapping[Any, Any]


def make_document(routes: Iterable[Route]) -> dict[str, Any]:
    """Of the routes that there are, each as its operation tells, or with its path alone."""
    told = dict(_tell(routes))
    schemas, components = describe_types(_types_of(told.values()))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in told.items():
        paths.setdefault(path, {})[method.lower()] = _describe((method, path), operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "ATOMesh", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def keys_of(route: Route) -> Iterator[Key]:
    """HEAD is as GET and not told."""
    for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
        yield method, _CONVERTER.sub("", route.path)


def _tell(routes: Iterable[Route]) -> Iterator[tuple[Key, Operation]]:
    for route in routes:
        kind = getattr(route.endpoint, "kind", None)
        operations = route.operations if isinstance(route, ToldRoute) else OPERATIONS
        for key in keys_of(route):
            operation = operations.get(key) or _UNTOLD
            if operation.request is None and kind is not None:
                operation = replace(operation, request=kind)
            yield key, operation


def _types_of(operations: Iterable[Operation]) -> Iterator[Any]:
    yield from (ErrorBody, AnthropicErrorBody)
    for operation in operations:
        named = (operation.request, operation.answer, *operation.query.values())
        yield from (kind for kind in named if kind is not None)


def _describe(key: Key, operation: Operation, schemas: Schemas) -> dict[str, Any]:
    method, path = key
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": dict(_responses(path, operation, schemas)),
    }
    if parameters := [*_path_parameters(path), *_query_parameters(operation, schemas)]:
        described["parameters"] = parameters
    if operation.request is not None:
        described["requestBody"] = {
            "required": not operation.is_body_optional,
            "content": {"application/json": {"schema": schemas[operation.request]}},
        }
    described["security"] = [{"adminToken": []}] if operation.is_admin else _ANY_KEY
    return described


def _responses(path: str, operation: Operation, schemas: Schemas) -> Iterator[tuple[str, Any]]:
    if operation.has_success:
        schema = {"type": "string"} if operation.answer is None else schemas[operation.answer]
        content = {operation.media_type: {"schema": schema}}
        if operation.is_streamed:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        yield "200", {"description": "OK", "content": content}
    error = AnthropicErrorBody if is_anthropic(path) else ErrorBody
    refusal = {"application/json": {"schema": schemas[error]}}
    for status in operation.refusals:
        yield str(status), {"description": HTTPStatus(status).phrase, "content": refusal}


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in _PARAMETER.findall(path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(operation: Operation, schemas: Schemas) -> Iterator[dict[str, Any]]:
    for name, kind in operation.query.items():
        yield {"name": name, "in": "query", "required": False, "schema": schemas[kind]}
