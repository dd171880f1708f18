"""The HTTP face as one ASGI application: OpenAI's routes over whatever serves tokens."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from atomesh.clock import Clock, MonotonicClock
from atomesh.errors import AtomeshError
from atomesh.frontend.anthropic.messages import CountTokens, Messages
from atomesh.frontend.context import Frontend
from atomesh.frontend.contract.document_route import document_route
from atomesh.frontend.http.boundary import Boundary
from atomesh.frontend.http.direct_routes import DirectRoutes
from atomesh.frontend.http.error_answers import answer_atomesh_error, answer_http_exception
from atomesh.frontend.openai.chat import ChatCompletions
from atomesh.frontend.openai.completions import Completions
from atomesh.frontend.openai.models import model_routes
from atomesh.frontend.openai.responses.endpoint import InputTokens, Responses
from atomesh.frontend.openai.responses.kept_responses import KeptResponses
from atomesh.frontend.openai.responses.stored_routes import stored_routes
from atomesh.frontend.openai.tokenize import Detokenize, Tokenize
from atomesh.frontend.openai.tokenizer_info import tokenizer_info_route
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.served_model import ServedModel
from atomesh.frontend.status_routes import status_routes
from atomesh.frontend.text.prompt_bounds import PromptBounds
from atomesh.frontend.text.text_pool import TextPool
from atomesh.observability.engine_collector import EngineCollector
from atomesh.observability.metrics import FrontendMetrics


def create_app(
    models: Callable[[], Sequence[ServedModel]],
    options: FrontendOptions | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
    middleware: Sequence[Middleware] = (),
    metrics: FrontendMetrics | None = None,
    clock: Clock | None = None,
) -> ASGIApp:
    """`models` is asked on every request and must be quick; while it gives none, requests get a 503.

    `routes` come before our own; `middleware`, outermost first, lies around all routes. An AtomeshError
    raised in either gets the answer that its class says. GET /metrics shows `metrics` and what was registered
    with them.
    """
    options = options or FrontendOptions()
    frontend = _make_frontend(models, options, metrics or FrontendMetrics(), clock or MonotonicClock())
    kept = KeptResponses(options)
    endpoints = _generation_endpoints(frontend, kept)
    generating = [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]
    all_routes = [*routes, *generating, *model_routes(frontend), *status_routes(frontend)]
    all_routes += [*stored_routes(frontend, kept), tokenizer_info_route(frontend)]
    all_routes.append(document_route([route for route in all_routes if isinstance(route, Route)]))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await kept.close()
        frontend.texts.close()
        frontend.grammars.close()

    app = Starlette(
        routes=all_routes,
        exception_handlers={
            AtomeshError: answer_atomesh_error,
            HTTPException: answer_http_exception,
            Exception: answer_atomesh_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    wrapped: ASGIApp = DirectRoutes(app, endpoints)
    for layer in reversed(middleware):
        wrapped = layer.cls(wrapped, *layer.args, **layer.kwargs)
    return Boundary(wrapped, frontend.metrics, [route for route in all_routes if isinstance(route, Route)])


def _make_frontend(
    models: Callable[[], Sequence[ServedModel]],
    options: FrontendOptions,
    metrics: FrontendMetrics,
    clock: Clock,
) -> Frontend:
    texts = TextPool(
        options.text_threads,
        max(options.max_text_characters, options.max_body_bytes),
        options.inline_characters,
    )
    frontend = Frontend(models, options, metrics, texts, PromptBounds(), clock)
    frontend.metrics.registry.register(EngineCollector(frontend.read_engines))
    return frontend


def _generation_endpoints(frontend: Frontend, kept: KeptResponses) -> dict[str, ASGIApp]:
    return {
        "/v1/chat/completions": ChatCompletions(frontend),
        "/v1/completions": Completions(frontend),
        "/v1/messages": Messages(frontend),
        "/v1/messages/count_tokens": CountTokens(frontend),
        Responses.path: Responses(frontend, kept),
        InputTokens.path: InputTokens(frontend, kept),
        "/tokenize": Tokenize(frontend),
        "/detokenize": Detokenize(frontend),
    }
