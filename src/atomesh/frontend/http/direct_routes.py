"""The routes that nearly every request takes, looked up by name rather than tried one after another."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class DirectRoutes:
    """ASGI layer: POST to one of `endpoints` goes to it, everything else inwards."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        app = self._endpoints.get(scope["path"], self._app) if is_post else self._app
        await app(scope, receive, send)
