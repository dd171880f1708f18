"""An error's JSON in the words of the API that was asked, which the path tells."""

from collections.abc import Callable
from typing import Any

from atomesh.errors import AtomeshError, ContextLengthError

MAX_MESSAGE_CHARS = 1000
MESSAGES = "/v1/messages"
ErrorShape = Callable[[AtomeshError, str], dict[str, Any]]  # the error and the request's id

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def shape_of(path: str) -> ErrorShape:
    return anthropic_shape if is_anthropic(path) else openai_shape


def openai_shape(error: AtomeshError, request_id: str = "", code: int | str | None = None) -> dict[str, Any]:
    """`code` stands in for the error's own word where given. The request's id is in the headers alone."""
    return {
        "error": {
            "message": error.message[:MAX_MESSAGE_CHARS],
            "type": error.type,
            "param": error.param,
            "code": error.code if code is None else code,
        }
    }


def anthropic_shape(error: AtomeshError, request_id: str) -> dict[str, Any]:
    message = f"prompt is too long: {error.message}" if is_overflow(error) else error.message
    return {
        "type": "error",
        "error": {"type": anthropic_type(error.status), "message": message[:MAX_MESSAGE_CHARS]},
        "request_id": request_id,
    }


def anthropic_type(status: int) -> str:
    """The word for an HTTP status."""
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def is_overflow(error: AtomeshError) -> bool:
    """Whether the prompt does not fit the context, whoever found out."""
    return error.code == ContextLengthError.default_code
