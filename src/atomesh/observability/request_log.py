"""One line for each request that is over, when the operator wants them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Scope

from atomesh.observability.request_record import RequestRecord

REQUEST_LOGGER = "atomesh.requests"


def log_requests() -> "RequestLog":
    """Lines at INFO, whatever the level of the rest of the log."""
    logging.getLogger(REQUEST_LOGGER).setLevel(logging.INFO)
    return RequestLog()


class RequestLog:
    """Implements `observed_requests.RequestObserver`."""

    def __init__(self) -> None:
        self._log = logging.getLogger(REQUEST_LOGGER)

    @contextmanager
    def around(self, record: RequestRecord, _scope: Scope) -> Iterator[None]:
        try:
            yield
        finally:
            self._log.info("%s %s", record.method, record.endpoint, extra=_fields(record))


def outcome_of(record: RequestRecord) -> str:
    """ok, error, or aborted by the client."""
    if record.has_client_left:
        return "aborted"
    return "ok" if record.error_type is None and record.status is not None else "error"


def _fields(record: RequestRecord) -> dict[str, object]:
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "trace_id": record.trace_id or None,
        "status": record.status,
        "outcome": outcome_of(record),
        "error_type": record.error_type,
        "duration_s": round(record.duration_s, 6),
    }
    if record.answer_id is None:
        return fields
    return fields | {
        "answer_id": record.answer_id,
        "model": record.model,
        "first_byte_s": None if record.first_byte_s is None else round(record.first_byte_s, 6),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "finish_reasons": list(record.finish_reasons) or None,
        "serving_path": record.serving_path,
    }
