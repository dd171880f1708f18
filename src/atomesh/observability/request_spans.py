"""A generating request's span: OpenTelemetry's conventions for GenAI and for HTTP servers.

Attribute names as of semantic conventions 1.41 and the GenAI conventions' own repository, where they have
moved. Prompts and answers, which those allow on request, are never recorded.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from atomesh.observability.request_record import RequestRecord
from atomesh.observability.tracing import Attribute, Span, Tracing

PROVIDER = "atomesh"
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}
_TRACE_HEADERS = (b"traceparent", b"tracestate")


class RequestSpans:
    """Implements `observed_requests.RequestObserver`. What generates nothing has no span."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    @contextmanager
    def around(self, record: RequestRecord, scope: Scope) -> Iterator[None]:
        operation = OPERATIONS.get(scope["path"])
        if operation is None or record.method != "POST":
            yield
            return
        with self._tracing.request(operation, _trace_headers(scope)) as span:
            record.trace_id = span.trace_id
            record.headers.append((b"traceparent", span.traceparent.encode()))
            try:
                yield
            finally:
                _close(span, operation, record)


def _trace_headers(scope: Scope) -> dict[str, str]:
    return {
        name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _TRACE_HEADERS
    }


def _close(span: Span, operation: str, record: RequestRecord) -> None:
    if record.model is not None:
        span.rename(f"{operation} {record.model}")
    span.note(_http(record) | _request(operation, record) | _response(record))
    if record.has_client_left:
        span.note({"atomesh.client_left": True})
    elif record.error_type is not None:
        span.fail(record.error_type)


def _http(record: RequestRecord) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "http.request.method": record.method,
        "http.route": record.endpoint,
        "atomesh.request_id": record.request_id,
    }
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    return attributes


def _request(operation: str, record: RequestRecord) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
    }
    if record.model is None:
        return attributes
    attributes |= {"gen_ai.request.model": record.model, "gen_ai.request.stream": record.is_streamed}
    if record.asked is None:
        return attributes
    asked = record.asked
    attributes |= {
        "gen_ai.request.max_tokens": asked.max_tokens,
        "gen_ai.request.temperature": asked.temperature,
        "gen_ai.request.top_p": asked.top_p,
        "gen_ai.request.presence_penalty": asked.presence_penalty,
        "gen_ai.request.frequency_penalty": asked.frequency_penalty,
    }
    if asked.top_k:
        attributes["gen_ai.request.top_k"] = asked.top_k
    if asked.choices != 1:
        attributes["gen_ai.request.choice.count"] = asked.choices
    return attributes


def _response(record: RequestRecord) -> dict[str, Attribute]:
    if record.model is None or record.answer_id is None:
        return {}
    attributes: dict[str, Attribute] = {
        "gen_ai.response.id": record.answer_id,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": list(record.finish_reasons),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
    }
    if record.serving_path is not None:
        attributes["atomesh.serving_path"] = record.serving_path
    if record.is_streamed and record.first_byte_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = record.first_byte_s
    return attributes
