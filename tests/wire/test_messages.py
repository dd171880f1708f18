"""POST /v1/messages to the byte: its stream's frames, and the shape of every error on its paths."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from atomesh.errors import AuthenticationError, RateLimitError, ServiceUnavailableError
from atomesh.frontend.app import create_app
from atomesh.testing.app_server import serve_app
from atomesh.testing.raw_http import RawResponse, send
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire

pytestmark = pytest.mark.usefixtures("both_ways")
PATH = "/v1/messages"
BODY: dict[str, Any] = {
    "model": "letters",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "Hi"}],
}


def check_error(response: RawResponse, status: int, word: str) -> str:
    """The message of an error in Anthropic's shape."""
    body = response.json()
    assert response.status == status
    assert (sorted(body), body["type"]) == (["error", "request_id", "type"], "error")
    assert (sorted(body["error"]), body["error"]["type"]) == (["message", "type"], word)
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    message: str = body["error"]["message"]
    return message


def frames(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for frame in body.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_stream_s_frames(scripted: ScriptedWire) -> None:
    scripted.say("é!")
    response = send(scripted.url, "POST", PATH, {**BODY, "stream": True}, {"x-request-id": "mine"})
    assert response.is_complete
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == response.headers["x-request-id"] == "mine"
    found = frames(response.body)
    assert all(name == data["type"] for name, data in found)
    start = found[0][1]["message"]
    assert start.pop("id").startswith("msg_")
    input_tokens = len(scripted.service.requests[0].prompt_token_ids)
    usage = {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 1,
        "output_tokens_details": {"thinking_tokens": 0},
    }
    assert [data for _, data in found] == [
        {
            "type": "message_start",
            "message": {
                "type": "message",
                "role": "assistant",
                "model": scripted.model,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "é"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {**usage, "output_tokens": 4},
        },
        {"type": "message_stop"},
    ]


def test_a_failure_amid_a_stream_is_an_error_event_and_a_cut(scripted: ScriptedWire) -> None:
    fault = ServiceUnavailableError("the worker is gone")
    scripted.service.script = lambda _request: Script(error=fault, fail_after=2)
    response = send(scripted.url, "POST", PATH, {**BODY, "stream": True})
    assert not response.is_complete
    assert frames(response.body)[-1] == (
        "error",
        {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "the worker is gone"},
            "request_id": response.headers["request-id"],
        },
    )


def test_comments_keep_an_idle_stream_alive(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(hang_after=1)
    response = send(scripted.url, "POST", PATH, {**BODY, "stream": True}, {"x-request-timeout": "0.8"})
    assert b"\n\n: keep-alive\n\n" in response.body
    assert frames(response.body.replace(b": keep-alive\n\n", b""))[-1][1]["error"]["type"] == "timeout_error"


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    ("body", "headers", "status", "word"),
    [
        (b"{", {}, 400, "invalid_request_error"),
        ({"max_tokens": 8}, {}, 400, "invalid_request_error"),
        ({**BODY, "model": "none"}, {}, 404, "not_found_error"),
        ({**BODY, "messages": []}, {}, 400, "invalid_request_error"),
        ({**BODY, "kv_transfer_params": {"a": 1}}, {}, 400, "invalid_request_error"),
        (BODY, {"x-atomesh-attempt": "1"}, 400, "invalid_request_error"),
        (BODY, {"content-type": "text/plain"}, 415, "invalid_request_error"),
        (BODY, {"content-length": str(2**20 + 1)}, 413, "request_too_large"),
    ],
)
def test_a_refusal_has_anthropic_s_shape(
    scripted: ScriptedWire, path: str, body: object, headers: dict[str, str], status: int, word: str
) -> None:
    assert check_error(send(scripted.url, "POST", path, body, headers), status, word)


def test_what_the_router_refuses_has_anthropic_s_shape(scripted: ScriptedWire) -> None:
    assert "use POST" in check_error(send(scripted.url, "GET", PATH), 405, "invalid_request_error")
    message = check_error(send(scripted.url, "POST", f"{PATH}/batches", BODY), 404, "not_found_error")
    assert f"there is no route {PATH}/batches" in message


def test_a_missing_limit_is_named(scripted: ScriptedWire) -> None:
    body = {name: value for name, value in BODY.items() if name != "max_tokens"}
    assert "max_tokens" in check_error(send(scripted.url, "POST", PATH, body), 400, "invalid_request_error")


def test_what_waits_for_a_model_has_retry_after(scripted: ScriptedWire) -> None:
    scripted.models.clear()
    response = send(scripted.url, "POST", PATH, BODY)
    check_error(response, 503, "overloaded_error")
    assert 1 <= int(response.headers["retry-after"]) <= 120


def test_fields_of_the_api_that_do_nothing_are_taken_and_the_unknown_counted(scripted: ScriptedWire) -> None:
    def counted() -> float:
        text = send(scripted.url, "GET", "/metrics").body.decode()
        name = f'atomesh_unknown_request_fields_total{{endpoint="{PATH}"}} '
        return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))

    before = counted()
    body = {**BODY, "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "tools": []}
    assert send(scripted.url, "POST", PATH, body).status == 200
    assert counted() == before
    assert send(scripted.url, "POST", PATH, {**body, "context_management": {"edits": []}}).status == 200
    assert counted() == before + 1


class Door:
    """Refuses everyone, each path for a reason of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].endswith("count_tokens"):
            raise RateLimitError("too many", retry_after_s=7)
        raise AuthenticationError("this key is none of ours")


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    with serve_app(create_app(list, middleware=[Middleware(Door)])) as server:
        yield server.url


def test_what_a_layer_around_the_routes_refuses_has_anthropic_s_shape(closed: str) -> None:
    check_error(send(closed, "POST", PATH, BODY), 401, "authentication_error")
    limited = send(closed, "POST", f"{PATH}/count_tokens", BODY)
    check_error(limited, 429, "rate_limit_error")
    assert limited.headers["retry-after"] == "7"
    assert send(closed, "POST", "/v1/chat/completions", BODY).error["code"] == "invalid_api_key"
