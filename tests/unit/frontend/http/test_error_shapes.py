"""Which shape an error has on which path."""

import asyncio
import json
from typing import Any

import pytest

from atomesh.errors import (
    AtomeshError,
    AuthenticationError,
    ContextLengthError,
    DeadlineExceededError,
    FatalRequestError,
    HeadTooLargeError,
    InvalidRequestError,
    MethodNotAllowedError,
    ModelNotFoundError,
    PermissionDeniedError,
    RateLimitError,
    RequestTimeoutError,
    RequestTooLargeError,
    ServiceUnavailableError,
    UnsupportedFeatureError,
    UnsupportedMediaTypeError,
)
from atomesh.frontend.http.error_answers import ErrorResponse
from atomesh.frontend.http.error_shapes import anthropic_shape, anthropic_type, openai_shape, shape_of
from atomesh.observability.request_record import record_of

TYPES = {
    InvalidRequestError: "invalid_request_error",
    AuthenticationError: "authentication_error",
    PermissionDeniedError: "permission_error",
    ModelNotFoundError: "not_found_error",
    MethodNotAllowedError: "invalid_request_error",
    RequestTimeoutError: "timeout_error",
    RequestTooLargeError: "request_too_large",
    HeadTooLargeError: "request_too_large",
    UnsupportedMediaTypeError: "invalid_request_error",
    RateLimitError: "rate_limit_error",
    AtomeshError: "api_error",
    UnsupportedFeatureError: "api_error",
    ServiceUnavailableError: "overloaded_error",
    DeadlineExceededError: "timeout_error",
}


@pytest.mark.parametrize("kind", TYPES)
def test_every_error_has_anthropic_s_word_for_its_status(kind: type[AtomeshError]) -> None:
    assert anthropic_type(kind.status) == TYPES[kind]


@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages/batches/1", True),
        ("/v1/messagesque", False),
        ("/v1/chat/completions", False),
        ("", False),
    ],
)
def test_the_path_chooses_the_shape(path: str, is_anthropic: bool) -> None:
    assert shape_of(path) is (anthropic_shape if is_anthropic else openai_shape)


def test_an_overflow_begins_with_the_words_that_agents_look_for() -> None:
    error = ContextLengthError("This model's maximum context length is 8 tokens", param="messages")
    assert anthropic_shape(error, "req-1") == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: This model's maximum context length is 8 tokens",
        },
        "request_id": "req-1",
    }
    assert openai_shape(error)["error"]["message"] == "This model's maximum context length is 8 tokens"


def answered(error: AtomeshError, path: str) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": []}
    record_of(scope).request_id = "req-7"
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ErrorResponse(error)(scope, receive, send))
    start, body = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert int(headers["content-length"]) == len(body["body"])
    return start, headers, json.loads(body["body"])


def test_a_response_takes_the_shape_of_the_path_that_was_asked() -> None:
    error = ServiceUnavailableError("busy", retry_after_s=7)
    start, headers, body = answered(error, "/v1/messages")
    assert (start["status"], headers["retry-after"]) == (503, "7")
    assert body == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
        "request_id": "req-7",
    }
    assert answered(error, "/v1/completions")[2] == openai_shape(error)


def test_what_killed_a_worker_is_not_to_be_sent_again_on_any_path() -> None:
    for path in ("/v1/messages", "/v1/completions"):
        assert answered(FatalRequestError("no"), path)[1]["x-should-retry"] == "false"
