"""Pages of other origins: they must be able to read our errors too."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atomesh.errors import AtomeshError, InvalidRequestError
from atomesh.frontend.http.error_answers import error_response


class Cors(CORSMiddleware):
    """ASGI layer: answers preflights, and marks every answer to an allowed origin, refusals too."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            _AnsweredErrors(app), allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = error_response(InvalidRequestError(bytes(response.body).decode()))
        for name, value in response.headers.items():
            refusal.headers.setdefault(name, value)
        return refusal


class _AnsweredErrors:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_noting(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except AtomeshError as error:
            if is_started or scope["type"] != "http":
                raise
            await error_response(error)(scope, receive, send)
