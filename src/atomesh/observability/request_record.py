"""What is known of one HTTP request when over: counts, times and names, never what it says, nor a key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

_RECORD = "atomesh.record"  # in an ASGI scope


@dataclass(frozen=True, slots=True)
class Asked:
    """The sampling of a generating request, as it was settled."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    presence_penalty: float
    frequency_penalty: float
    choices: int


@dataclass(slots=True)
class RequestRecord:
    """Filled in along the request's way; what does not apply keeps its default.

    `endpoint` is a route's path, `request_id` the label on the answer, `answer_id` the `id` in its body,
    whose attempts are named after it. `error_type` is the `type` of the error that the client saw. Times are
    in seconds since the request arrived; `first_byte_s` is that of the body. `headers` go with the answer.
    """

    method: str = ""
    endpoint: str = ""
    request_id: str = ""
    trace_id: str = ""
    status: int | None = None
    error_type: str | None = None
    has_client_left: bool = False
    first_byte_s: float | None = None
    duration_s: float = 0.0
    model: str | None = None
    answer_id: str | None = None
    is_streamed: bool = False
    prompts: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reasons: Sequence[str] = ()
    serving_path: str | None = None
    asked: Asked | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def record_of(scope: Scope) -> RequestRecord:
    """The request's own, made when it is first asked for."""
    record: RequestRecord | None = scope.get(_RECORD)
    if record is None:
        record = scope[_RECORD] = RequestRecord(method=scope["method"])
    return record
