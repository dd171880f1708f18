"""GET /v1/models and /v1/models/{id}, in the words of whose client asks; an id may contain slashes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atomesh.errors import ModelNotFoundError
from atomesh.frontend.anthropic.model_list import anthropic_entry, anthropic_list, wants_anthropic
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.served_model import ServedModel
from atomesh.protocol.worker import ModelDescription


def model_routes(frontend: Frontend) -> list[Route]:
    async def list_models(request: Request) -> Response:
        ready_models = frontend.seen_from(request.scope).ready_models()
        is_anthropic = wants_anthropic(request.headers)
        entry = anthropic_entry if is_anthropic else _entry
        entries = [entry(name, *ready) for ready in ready_models for name in _names(ready[0])]
        return _json(anthropic_list(entries) if is_anthropic else {"object": "list", "data": entries})

    async def show_model(request: Request) -> Response:
        name = request.path_params["id"]
        if not name:
            raise ModelNotFoundError(
                "the path ends without a model; GET /v1/models lists them", param="model"
            )
        model = frontend.seen_from(request.scope).find_model(name)
        entry = anthropic_entry if wants_anthropic(request.headers) else _entry
        return _json(entry(name, model, model.service.describe()))

    return [Route("/v1/models", list_models), Route("/v1/models/{id:path}", show_model)]


def _names(model: ServedModel) -> tuple[str, ...]:
    return (model.name, *model.aliases)


def _entry(name: str, model: ServedModel, description: ModelDescription) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "atomesh",
        "root": model.name,
        "parent": None,
        "max_model_len": description.max_model_len or None,
    }


def _json(value: object) -> Response:
    return Response(encode_json(value), media_type="application/json")
