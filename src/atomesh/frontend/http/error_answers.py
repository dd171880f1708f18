"""Every error on its way out: as a response before the headers have gone, as a frame after."""

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atomesh.errors import (
    AtomeshError,
    FatalRequestError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RateLimitError,
    ServiceUnavailableError,
)
from atomesh.frontend.http.error_shapes import anthropic_shape, is_anthropic, openai_shape, shape_of
from atomesh.frontend.http.json_text import encode_json
from atomesh.observability.request_record import record_of

INTERNAL = "the server failed on this request; its log says why"


class ErrorResponse(Response):
    """`error` with its HTTP status, in the shape of the API whose path was asked."""

    def __init__(self, error: AtomeshError) -> None:
        super().__init__(None, error.status, _headers_of(error), media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        shape = shape_of(scope.get("path", ""))
        self.body = encode_json(shape(self._error, record_of(scope).request_id))
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def _headers_of(error: AtomeshError) -> dict[str, str]:
    headers = {}
    if isinstance(error, ServiceUnavailableError | RateLimitError):
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, FatalRequestError):
        headers["x-should-retry"] = "false"
    return headers


def error_response(error: AtomeshError) -> Response:
    return ErrorResponse(error)


def internal_response() -> Response:
    """To what nobody has foreseen. The connection ends with it: the error that goes on outwards cuts it."""
    response = error_response(AtomeshError(INTERNAL))
    response.headers["connection"] = "close"
    return response


def error_frame(error: AtomeshError) -> bytes:
    """A failure after the 200, as OpenAI's: an event whose `code` is the status that was not to be sent."""
    return b"event: error\ndata: " + encode_json(openai_shape(error, code=error.status)) + b"\n\n"


def anthropic_error_frame(error: AtomeshError, request_id: str) -> bytes:
    return b"event: error\ndata: " + encode_json(anthropic_shape(error, request_id)) + b"\n\n"


def error_frame_of(path: str, error: AtomeshError, request_id: str) -> bytes:
    """A failure after the 200, in the shape of the API whose path was asked."""
    return anthropic_error_frame(error, request_id) if is_anthropic(path) else error_frame(error)


async def answer_atomesh_error(request: Request, error: Exception) -> Response:
    if isinstance(error, AtomeshError):
        return _answer(request, error)
    record_of(request.scope).error_type = AtomeshError.type
    return internal_response()


async def answer_http_exception(request: Request, exception: Exception) -> Response:
    """What the router raises (404, 405) in our shape, with its headers (Allow)."""
    if not isinstance(exception, HTTPException):
        return _answer(request, AtomeshError(INTERNAL))
    response = _answer(request, _translate(request, exception))
    for name, value in (exception.headers or {}).items():
        response.headers[name] = value
    return response


def _answer(request: Request, error: AtomeshError) -> Response:
    record_of(request.scope).error_type = error.type
    return error_response(error)


def _translate(request: Request, exception: HTTPException) -> AtomeshError:
    path = request.url.path[:200]
    if exception.status_code == 404:
        return NotFoundError(
            f"there is no route {path}; GET /v1/models and POST /v1/chat/completions are two"
        )
    if exception.status_code == 405:
        allowed = (exception.headers or {}).get("Allow", "another method")
        return MethodNotAllowedError(f"{request.method} is not allowed on {path}; use {allowed}")
    if exception.status_code < 500:
        return InvalidRequestError(str(exception.detail))
    return AtomeshError(INTERNAL)
