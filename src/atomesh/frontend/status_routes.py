"""What is up and how busy it is: health, readiness, version, load, metrics."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atomesh import __version__
from atomesh.errors import InvalidRequestError
from atomesh.frontend.context import Frontend
from atomesh.frontend.http.json_text import encode_json


def status_routes(frontend: Frontend) -> list[Route]:
    """`/health`, `/ready` and `/ping` are 200 only while requests can be served; `/live` is the process."""

    async def ready(_request: Request) -> Response:
        frontend.ready_models()
        return _json({"status": "ok"})

    async def live(_request: Request) -> Response:
        return _json({"status": "alive"})

    async def version(_request: Request) -> Response:
        return _json({"version": __version__})

    async def load(_request: Request) -> Response:
        loads = [engine.load for engine in frontend.read_engines()]
        running, waiting = (sum(getattr(load, name) for load in loads) for name in ("running", "waiting"))
        return _json({"server_load": running + waiting, "running": running, "waiting": waiting})

    async def metrics(_request: Request) -> Response:
        return Response(frontend.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def embeddings(_request: Request) -> Response:
        raise InvalidRequestError(
            "the served models generate text and make no embeddings; use a model that does",
            code="unsupported_model",
        )

    return [
        Route("/health", ready),
        Route("/ready", ready),
        Route("/ping", ready, methods=["GET", "POST"]),
        Route("/live", live),
        Route("/version", version),
        Route("/load", load),
        Route("/metrics", metrics),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
    ]


def _json(value: object) -> Response:
    return Response(encode_json(value), media_type="application/json")
