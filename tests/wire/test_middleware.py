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


class Broken:
    """A layer with a bug."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raise RuntimeError("secret detail")
        await self._app(scope, receive, send)


def test_a_bug_in_a_layer_is_an_error_of_the_one_shape_too() -> None:
    with serve_app(create_app(list, middleware=[Middleware(Broken)])) as server:
        response = send(server.url, "GET", "/live")
    assert response.status == 500
    assert response.headers["connection"] == "close"
    assert response.error == {
        "message": "the server failed on this request; its log says why",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert response.headers["x-request-id"].startswith("req-")
