import asyncio

import pytest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from atomesh.frontend.http.boundary import Boundary
from atomesh.observability.metrics import FrontendMetrics


async def inner(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("", status_code=418)(scope, receive, send)


def answer(_request: object) -> Response:
    return Response()


ROUTES = [
    Route("/workers", answer, methods=["GET", "POST"]),
    Route("/workers/{id:path}", answer, methods=["DELETE"]),
    Route("/workers/{id}/role", answer, methods=["POST"]),
    Route("/explain/{id}", answer, methods=["GET"]),
    Route("/v1/responses", answer, methods=["POST"]),
    Route("/v1/models/{id:path}", answer, methods=["GET"]),
]


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("GET", "/workers", "/workers"),
        ("PUT", "/workers", "/workers"),
        ("DELETE", "/workers/10.0.0.1:8100", "/workers/{id}"),
        ("DELETE", "/workers/unix:/run/a.sock/role", "/workers/{id}"),
        ("POST", "/workers/decode-0/role", "/workers/{id}/role"),
        ("GET", "/workers/decode-0", "/workers/{id}"),
        ("GET", "/explain/chatcmpl-1", "/explain/{id}"),
        ("GET", "/v1/models/org/name", "/v1/models/{id}"),
        ("POST", "/v1/responses", "/v1/responses"),
        ("GET", "/explain/a/b", "other"),
        ("GET", "/{id}", "other"),
        ("GET", "/", "other"),
    ],
)
def test_a_request_is_counted_under_the_pattern_of_its_route(method: str, path: str, label: str) -> None:
    metrics = FrontendMetrics()
    boundary = Boundary(inner, metrics, ROUTES)
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": []}

    async def send(_message: object) -> None:
        """Nobody listens."""

    asyncio.run(boundary(scope, None, send))  # type: ignore[arg-type]
    assert metrics.http_requests.labels(label, "418")._value.get() == 1.0
    assert len(next(iter(metrics.http_requests.collect())).samples) == 2  # the count, and when it began
