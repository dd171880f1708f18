"""The one shape of every error: as a response before the headers have gone, as a frame after."""

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from atomesh.errors import (
    AtomeshError,
    FatalRequestError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RateLimitError,
    ServiceUnavailableError,
)
from atomesh.frontend.http.json_text import encode_json
from atomesh.observability.request_record import record_of

MAX_MESSAGE_CHARS = 1000
INTERNAL = "the server failed on this request; its log says why"


def error_body(error: AtomeshError, code: int | str | None = None) -> dict[str, Any]:
    """The JSON body; `code` stands in for the error's own word where given."""
    return {
        "error": {
            "message": error.message[:MAX_MESSAGE_CHARS],
            "type": error.type,
            "param": error.param,
            "code": error.code if code is None else code,
        }
    }


def error_response(error: AtomeshError) -> Response:
    """`error` with its HTTP status, and Retry-After where it has one."""
    headers = {}
    if isinstance(error, ServiceUnavailableError | RateLimitError):
        headers["retry-after"] = str(error.retry_after_s)
    if isinstance(error, FatalRequestError):
        headers["x-should-retry"] = "false"
    return Response(encode_json(error_body(error)), error.status, headers, media_type="application/json")


def internal_response() -> Response:
    """To what nobody has foreseen. The connection ends with it: the error that goes on outwards cuts it."""
    response = error_response(AtomeshError(INTERNAL))
    response.headers["connection"] = "close"
    return response


def error_frame(error: AtomeshError) -> bytes:
    """A failure after the 200: an SSE event whose `code` is the status that could no longer be sent."""
    return b"event: error\ndata: " + encode_json(error_body(error, code=error.status)) + b"\n\n"


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
