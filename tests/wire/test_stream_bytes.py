"""Streams byte by byte, against the scripted double: frames, held headers, comments, cuts."""

import asyncio
import json
import socket
import time
from typing import Any

import openai
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from atomesh.errors import EngineError, RateLimitError, ServiceUnavailableError
from atomesh.frontend.generation import StepPieces
from atomesh.frontend.http import http_protocol
from atomesh.frontend.openai.chat_renderer import ChatRenderer
from atomesh.testing.byte_tokenizer import END
from atomesh.testing.raw_http import RawResponse, connect, parse_response, request_bytes, send
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire

pytestmark = pytest.mark.usefixtures("both_ways")
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
DONE = b"data: [DONE]\n\n"


def stream(wire: ScriptedWire, path: str = CHAT, **fields: Any) -> RawResponse:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return send(wire.url, "POST", path, {"model": wire.model, "stream": True, **prompt, **fields})


def chunks(response: RawResponse) -> list[dict[str, Any]]:
    frames = response.body.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert all(frame.startswith(b"data: {") for frame in frames[:-2])
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]


def test_the_frames_of_a_short_chat(scripted: ScriptedWire) -> None:
    scripted.say("Hi")
    response = stream(scripted)
    assert response.status == 200
    assert response.is_complete
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-serving-path"] == "unified"
    assert response.headers["server-timing"] == "queue;dur=250.000, prefill;dur=500.000, transfer;dur=0.000"
    first, second, last = chunks(response)
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "H"},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert second["choices"][0]["delta"] == {"content": "i"}
    assert last["choices"][0]["delta"] == {"content": ""}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["choices"][0]["stop_reason"] is None
    assert "usage" not in last


def test_the_frames_of_a_short_completion_with_usage(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(tokens=[[*b"Hi"]], cached_tokens=3)
    response = stream(scripted, "/v1/completions", max_tokens=2, stream_options={"include_usage": True})
    first, second, last = chunks(response)
    assert first["choices"] == [{"index": 0, "text": "H", "logprobs": None, "finish_reason": None}]
    assert first["usage"] is None
    assert second["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


TEXT = 'a é 世界 🌍 \u2028\u2029\x85 "quoted"\n'


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_characters_are_whole_and_line_ends_escaped(scripted: ScriptedWire, path: str) -> None:
    scripted.say(TEXT)
    response = stream(scripted, path, max_tokens=100)
    for raw in ("\u2028", "\u2029", "\x85"):
        assert raw.encode() not in response.body
    assert b"\\u2028" in response.body
    texts = [
        c["choices"][0].get("text") or c["choices"][0].get("delta", {}).get("content") or ""
        for c in chunks(response)
    ]
    assert "".join(texts) == TEXT
    assert all("\ufffd" not in text for text in texts)
    whole = send(scripted.url, "POST", path, {"messages": HELLO, "prompt": "hello", "max_tokens": 100})
    assert "\u2028".encode() not in whole.body
    (choice,) = whole.json()["choices"]
    assert (choice.get("text") or choice["message"]["content"]) == TEXT


def test_an_invalid_tail_becomes_one_replacement_character(scripted: ScriptedWire) -> None:
    scripted.say(b"ok\xf0\x9f")
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks(stream(scripted))) == "ok\ufffd"


def test_only_what_may_become_a_stop_string_is_held_back(scripted: ScriptedWire) -> None:
    scripted.say("abSTaSTOPxyz")
    response = stream(scripted, stop=["STOP"])
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks(response)]
    assert texts == ["a", "b", "STa", ""]
    last = chunks(response)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "STOP")


def test_the_first_token_opens_the_stream_even_when_held_back(scripted: ScriptedWire) -> None:
    scripted.say("ST", ends=False)
    first, last = chunks(stream(scripted, stop=["STOP"], max_tokens=2))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0]["delta"] == {"content": "ST"}
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_request_in_the_engine(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(tokens=[[*b"abSTOP"]], hang_after=6)
    answer = scripted.client.chat.completions.create(
        model=scripted.model, messages=HELLO, stop="STOP", max_tokens=50
    )
    assert answer.choices[0].message.content == "ab"
    assert answer.usage.completion_tokens == 6


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (RateLimitError("too many requests: slow down"), 429, "rate_limit_exceeded"),
        (ServiceUnavailableError("no worker is ready", retry_after_s=7), 503, "service_unavailable_error"),
        (EngineError("the engine failed"), 500, "server_error"),
    ],
)
def test_a_failure_before_the_first_token_is_a_status(
    scripted: ScriptedWire, error: Exception, status: int, kind: str, is_streamed: bool
) -> None:
    scripted.service.script = lambda _request: Script(error=error)
    response = stream(scripted, stream=is_streamed)
    assert response.status == status
    assert response.error["type"] == kind
    assert response.error["message"] == error.args[0]
    assert response.headers.get("retry-after") == {429: "1", 503: "7"}.get(status)


def test_a_failure_after_the_first_token_is_a_frame_and_a_cut(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(error=EngineError("the engine failed"), fail_after=2)
    response = stream(scripted, max_tokens=9)
    assert response.status == 200
    assert not response.is_complete
    assert DONE not in response.body
    frame = response.body.split(b"\n\n")[-2]
    assert frame.startswith(b"event: error\ndata: {")
    assert json.loads(frame.split(b"data: ")[1])["error"] == {
        "message": "the engine failed",
        "type": "server_error",
        "param": None,
        "code": 500,
    }
    with pytest.raises(openai.APIError, match="the engine failed"):
        for _ in scripted.client.chat.completions.create(model=scripted.model, messages=HELLO, stream=True):
            pass


def test_a_bug_after_the_first_token_shows_nothing_of_itself(scripted: ScriptedWire) -> None:
    broken: Any = RuntimeError("secret detail")
    scripted.service.script = lambda _request: Script(error=broken, fail_after=1)
    response = stream(scripted, max_tokens=9)
    assert not response.is_complete
    assert b"secret" not in response.body
    assert b'"code":500' in response.body


def test_a_bug_before_the_first_token_is_a_plain_500(scripted: ScriptedWire) -> None:
    broken: Any = RuntimeError("secret detail")
    scripted.service.script = lambda _request: Script(error=broken)
    response = stream(scripted)
    assert response.status == 500
    assert response.headers["connection"] == "close"
    assert response.error["type"] == "server_error"
    assert b"secret" not in response.body
    assert response.headers["x-request-id"]


async def make_gate() -> asyncio.Event:
    return asyncio.Event()


async def open_gate(gate: asyncio.Event) -> None:
    gate.set()


def test_headers_are_held_for_the_first_token_and_then_comments_go(scripted: ScriptedWire) -> None:
    gate = scripted.server.run(make_gate())
    scripted.service.script = lambda _request: Script(tokens=[[*b"Hi"]], gate=gate)
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 2}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        received = b""
        while received.count(b": keep-alive\n\n") < 2:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"data:" not in received
        scripted.server.run(open_gate(gate))
        while part := connection.recv(65536):
            received += part
    response = parse_response(received)
    assert response.is_complete
    assert "server-timing" not in response.headers
    spoken = response.body.replace(b": keep-alive\n\n", b"")
    assert spoken.startswith(b'data: {"id":"chatcmpl-')
    assert spoken.endswith(DONE)


def test_a_failure_after_the_first_comment_is_a_frame(scripted: ScriptedWire) -> None:
    gate = scripted.server.run(make_gate())
    scripted.service.script = lambda _request: Script(error=RateLimitError("full"), fail_after=1, gate=gate)
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 2}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        received = connection.recv(65536)
        scripted.server.run(open_gate(gate))
        while part := connection.recv(65536):
            received += part
    response = parse_response(received)
    assert not response.is_complete
    assert b'"code":429' in response.body


def test_every_step_is_one_write(scripted: ScriptedWire) -> None:
    scripted.say("abc", "def", ends=False)
    body = json.dumps({"messages": HELLO, "stream": True, "max_tokens": 3, "n": 2, "temperature": 1}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        received = b""
        while part := connection.recv(65536):
            received += part
    http_chunks = received.partition(b"\r\n\r\n")[2].count(b"\r\n") // 2
    assert http_chunks == 5  # three steps of two choices, [DONE], the end


def test_a_deadline_amid_the_tokens_cuts_after_them(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(tokens=[[*b"abcdef"]], hang_after=5)
    body = {"messages": HELLO, "stream": True}
    response = send(scripted.url, "POST", CHAT, body, {"x-request-timeout": "0.2"})
    assert not response.is_complete
    *told, failure, end = response.body.split(b"\n\n")
    texts = [json.loads(frame.removeprefix(b"data: "))["choices"][0]["delta"]["content"] for frame in told]
    assert (texts, end) == ([*"abcde"], b"")
    assert failure.startswith(b"event: error\ndata: {")
    assert b"x-request-timeout" in failure
    assert len(scripted.service.aborted) == 1


@pytest.mark.parametrize("fault", [LookupError("secret detail"), EngineError("no such text")], ids=repr)
def test_a_fault_of_the_rendering_cuts_its_own_stream(
    scripted: ScriptedWire, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    written = ChatRenderer.frames

    def frames(renderer: ChatRenderer, step: StepPieces) -> bytes:
        if any(piece.text == "c" for piece in step.pieces):
            raise fault
        return written(renderer, step)

    monkeypatch.setattr(ChatRenderer, "frames", frames)
    scripted.say("abcd")
    response = stream(scripted)
    assert not response.is_complete
    *told, failure, end = response.body.split(b"\n\n")
    texts = [json.loads(frame.removeprefix(b"data: "))["choices"][0]["delta"]["content"] for frame in told]
    assert (texts, end) == (["a", "b"], b"")
    assert json.loads(failure.split(b"data: ")[1])["error"]["code"] == 500
    assert b"secret" not in failure
    scripted.say("abd")
    assert len(chunks(stream(scripted))) == 4


def with_small_buffers(transport: asyncio.Transport) -> None:
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    transport.set_write_buffer_limits(high=2000)


def test_a_slow_client_has_every_byte_in_its_order(
    scripted: ScriptedWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport pauses again and again, and comments go meanwhile."""
    pauses: list[FlowControl] = []
    monkeypatch.setattr(http_protocol, "send_at_once", with_small_buffers)
    pause = FlowControl.pause_writing

    def note_and_pause(flow: FlowControl) -> None:
        pauses.append(flow)
        pause(flow)

    monkeypatch.setattr(FlowControl, "pause_writing", note_and_pause)
    text = (b"abcdefghijklmnopqrstuvwxyz" * 20)[:480]
    scripted.say(text)
    body = {"prompt": "hi", "stream": True, "max_tokens": 500, "logprobs": 5, "return_token_ids": True}
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with slow:
        slow.settimeout(10.0)
        slow.connect((scripted.server.host, scripted.server.port))
        slow.sendall(request_bytes("POST", "/v1/completions", json.dumps(body).encode()))
        received = b""
        while part := slow.recv(4096):
            received += part
            if len(received) % 40_000 < 4096:
                time.sleep(0.15)
    response = parse_response(received)
    assert response.is_complete
    *frames, done, end = response.body.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    told = [json.loads(frame.removeprefix(b"data: ")) for frame in frames if frame != b": keep-alive"]
    assert [token for chunk in told for token in chunk["choices"][0]["token_ids"]] == [*text, END]
    assert "".join(chunk["choices"][0]["text"] for chunk in told) == text.decode()
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None] * 480 + ["stop"]
    assert b": keep-alive" in frames
    assert len(pauses) > 10


def test_a_deadline_ends_a_stream_and_a_whole_answer(scripted: ScriptedWire) -> None:
    scripted.service.script = lambda _request: Script(hang_after=1)
    for is_streamed in (True, False):
        body = {"messages": HELLO, "stream": is_streamed}
        response = send(scripted.url, "POST", CHAT, body, {"x-request-timeout": "0.1"})
        assert b"x-request-timeout" in response.body
        assert response.status == (200 if is_streamed else 504)
        assert response.is_complete != is_streamed
    assert len(scripted.service.aborted) == 2


USAGE = {
    "prompt_tokens": 6,
    "completion_tokens": 3,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
TIMES = "queue;dur=250.000, prefill;dur=500.000, transfer;dur=0.000"


@pytest.fixture
def three_tokens(scripted: ScriptedWire) -> ScriptedWire:
    scripted.service.script = lambda _request: Script(tokens=[[*b"abc"]], cached_tokens=4)
    return scripted


ASKED: dict[str, Any] = {"prompt": "hello", "max_tokens": 3}


def test_a_whole_completion_tells_time_path_and_usage(three_tokens: ScriptedWire) -> None:
    body = {"model": three_tokens.model, **ASKED}
    response = send(three_tokens.url, "POST", "/v1/completions", body, {"x-request-id": "my.label-1"})
    assert response.headers["x-request-id"] == "my.label-1"
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-serving-path"] == "unified"
    times, _, decode = response.headers["server-timing"].rpartition(", decode;dur=")
    assert times == TIMES
    assert 0.0 <= float(decode) < 10_000.0
    answer = response.json()
    assert answer["usage"] == USAGE
    assert sorted(answer) == ["choices", "created", "id", "model", "object", "system_fingerprint", "usage"]
    assert answer["object"] == "text_completion"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("usage", [{}, {"include_usage": True}, {"continuous_usage_stats": True}], ids=repr)
@pytest.mark.parametrize("explains", [False, True])
def test_a_stream_tells_time_path_and_usage(
    three_tokens: ScriptedWire, path: str, usage: dict[str, bool], explains: bool
) -> None:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    body = {"model": three_tokens.model, "stream": True, "max_tokens": 3, "stream_options": usage, **prompt}
    response = send(three_tokens.url, "POST", path, body, {"x-explain": "1"} if explains else {})
    assert response.headers["x-serving-path"] == "unified"
    assert response.headers["server-timing"] == TIMES
    told = chunks(response)
    expected = USAGE if path != CHAT else None  # a chat's prompt is longer by its template
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in told}) == 1
    is_last_apart = explains or "include_usage" in usage
    assert [len(chunk["choices"]) for chunk in told] == [1, 1, 1, *([0] if is_last_apart else [])]
    assert [chunk["choices"][0]["finish_reason"] for chunk in told[:3]] == [None, None, "length"]
    counted = [chunk["usage"]["completion_tokens"] for chunk in told if chunk.get("usage")]
    if not usage:
        assert all("usage" not in chunk for chunk in told)
    elif "include_usage" in usage:
        assert [chunk["usage"] for chunk in told[:3]] == [None] * 3
        assert counted == [3]
    else:
        assert counted == [1, 2, 3, *([3] if explains else [])]
    if usage and expected:
        assert told[-1]["usage"] == expected
    assert ("timings" in told[-1]) == explains
    if explains:
        assert told[-1]["serving_path"] == "unified"
        assert list(told[-1]["timings"]) == ["queue", "prefill", "transfer", "decode"]
        assert told[-1]["timings"]["prefill"] == 500.0
