"""What the gateway adds around the API: layers and routes of its own, with errors in the one shape."""

from collections.abc import Iterator

import pytest
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from atomesh.errors import AuthenticationError, PermissionDeniedError
from atomesh.frontend.app import create_app
from atomesh.testing.app_server import serve_app
from atomesh.testing.raw_http import send


class Guard:
    """Lets nobody in who does not say the word."""

    def __init__(self, app: ASGIApp, word: bytes) -> None:
        self._app = app
        self._word = word

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"authorization", b"Bearer " + self._word) not in scope["headers"]:
            raise AuthenticationError("the API key is wrong; send 'Authorization: Bearer KEY'")
        await self._app(scope, receive, send)


async def workers(request: Request) -> Response:
    if "admin" not in request.query_params:
        raise PermissionDeniedError("only an admin may see this")
    return JSONResponse({"workers": []})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app = create_app(
        list, routes=[Route("/workers", workers)], middleware=[Middleware(Guard, word=b"sesame")]
    )
    with serve_app(app) as server:
        yield server.url


@pytest.mark.parametrize("path", ["/v1/models", "/live", "/nowhere", "/workers"])
def test_a_layer_s_error_has_the_one_shape(url: str, path: str) -> None:
    response = send(url, "GET", path)
    assert response.status == 401
    assert response.error["type"] == response.error["code"] == "invalid_api_key"
    assert response.headers["x-request-id"]


def test_added_routes_are_served_and_their_errors_shaped(url: str) -> None:
    key = {"authorization": "Bearer sesame"}
    assert send(url, "GET", "/workers?admin", headers=key).json() == {"workers": []}
    response = send(url, "GET", "/workers", headers=key)
    assert response.status == 403
    assert response.error["code"] == "permission_denied"
    assert send(url, "DELETE", "/workers", headers=key).status == 405
