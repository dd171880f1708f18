"""Foreign servers' errors, in our words where theirs might tell what is none of a client's business."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from atomesh import errors
from atomesh.errors import AtomeshError
from atomesh.mesh.backends.foreign_json import UnreadableError, decode_json

MAX_WORDS = 500
LONGEST_RETRY_S = 120
CONTEXT_WORDS = ("maximum context length", "context length", "max_model_len", "longer than the model's")
_TOO_BUSY = "the engine takes no more requests now; try again later"
_anything = msgspec.json.Decoder()


class NotServedError(errors.ServiceUnavailableError):
    """The engine has no such route, or no such model."""

    def __init__(self) -> None:
        super().__init__("the engine does not serve this model; try again later")


def to_error(status: int, body: bytes, retry_after: str | None = None) -> AtomeshError:
    """What our client, or the flow, shall see of an answer with this status.

    An engine that is overloaded, or gone behind its proxy, is unavailable: the request may go elsewhere.
    """
    return _to_error(status, *_words(read_json(body)), retry_after)


def to_error_in_stream(error: Mapping[str, Any]) -> AtomeshError:
    """Of an error frame after the 200: `code` is the status where it is a number."""
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return _to_error(status, *_words({"error": error}), None)


def read_json(text: bytes) -> Any:
    """None for what is no JSON, or none that one could read."""
    try:
        return decode_json(text, _anything)
    except UnreadableError:
        return None


def _to_error(status: int, message: str, param: str | None, retry_after: str | None) -> AtomeshError:
    if status in (400, 422):
        return _bad_request(message, param)
    if status in _KINDS:
        return _KINDS[status](message)
    if status in (429, 502, 503):
        return errors.ServiceUnavailableError(_TOO_BUSY, retry_after_s=_seconds(retry_after))
    if 400 <= status < 500:
        return errors.InvalidRequestError(message or f"the engine refused the request ({status})")
    return errors.EngineError(f"the engine failed on this request (status {status}); try again")


def _bad_request(message: str, param: str | None) -> AtomeshError:
    is_length = any(word in message for word in CONTEXT_WORDS)
    kind = errors.ContextLengthError if is_length else errors.InvalidRequestError
    return kind(message or "the engine refused the request, and did not say why", param=param)


def _key_refused(_message: str) -> AtomeshError:
    return errors.EngineError("the engine does not know the gateway's key; the operator must set it")


def _unknown(_message: str) -> AtomeshError:
    return NotServedError()


_KINDS: Mapping[int, Callable[[str], AtomeshError]] = {
    401: _key_refused,
    403: _key_refused,
    404: _unknown,
    408: lambda _: errors.DeadlineExceededError("the engine gave up waiting; send a shorter request"),
    413: lambda _: errors.RequestTooLargeError(
        "the body is longer than the engine takes; send a shorter one"
    ),
    501: lambda message: errors.UnsupportedFeatureError(message or "the engine cannot do this"),
    504: lambda _: errors.DeadlineExceededError("the engine gave up on this request; ask for less"),
}


def _words(document: Any) -> tuple[str, str | None]:
    """Message and param of OpenAI's shape, of vLLM's older flat one, and of FastAPI's `detail`; vLLM names
    the fields of a body that it could not read with the body before them."""
    if not isinstance(document, dict):
        return "", None
    inner = document.get("error", document)
    if isinstance(inner, str):
        return inner[:MAX_WORDS], None
    if not isinstance(inner, Mapping):
        return "", None
    message = inner.get("message", inner.get("detail"))
    param = inner.get("param")
    return (
        message[:MAX_WORDS] if isinstance(message, str) else "",
        param.removeprefix("body.") if isinstance(param, str) else None,
    )


def _seconds(retry_after: str | None) -> int:
    """From 1 to LONGEST_RETRY_S; 1 for what is no number of them."""
    told = re.fullmatch(r"\s*([0-9]+)\s*", retry_after or "")
    return 1 if told is None else min(max(int(told[1][:9]), 1), LONGEST_RETRY_S)
