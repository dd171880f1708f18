"""What one connection may do to the server: pipelined requests, heads without end, Upgrade."""

import json
import socket
from collections.abc import Iterator

import pytest

from atomesh.frontend.http import http_protocol
from atomesh.testing.raw_http import RawResponse, connect, parse_response, read_response, request_bytes
from atomesh.testing.scripted_service import Script
from atomesh.testing.wire import ScriptedWire

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}).encode()
LIVE = b"GET /live HTTP/1.1\r\nhost: test\r\n\r\n"
OPEN_POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
KEPT_POST = request_bytes("POST", CHAT, BODY, {"connection": "keep-alive"})


def pieces_until_close(connection: socket.socket) -> Iterator[bytes]:
    while piece := connection.recv(65536):
        yield piece


@pytest.mark.parametrize("max_held_bytes", [1000, http_protocol.MAX_HELD_BYTES])
def test_pipelined_requests_are_answered_in_their_order(
    scripted: ScriptedWire, monkeypatch: pytest.MonkeyPatch, max_held_bytes: int
) -> None:
    monkeypatch.setattr(http_protocol, "MAX_HELD_BYTES", max_held_bytes)
    with connect(scripted.url) as connection:
        connection.sendall(KEPT_POST + LIVE * 2000 + request_bytes("POST", CHAT, BODY))
        received = b"".join(pieces_until_close(connection))
    assert received.count(b"HTTP/1.1 200 ") == 2002
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"chat.completion") == 2
    assert received.index(b"chat.completion") < received.index(b"HTTP/1.1 200 ", 10)


@pytest.mark.parametrize("next_bytes", [KEPT_POST, LIVE * 5000, b"GET /li", b"?!\r\n\r\n"], ids=len)
def test_a_client_that_leaves_after_more_was_sent(scripted: ScriptedWire, next_bytes: bytes) -> None:
    scripted.service.script = lambda _request: Script(hang_after=1)
    with connect(scripted.url) as connection:
        connection.sendall(KEPT_POST + next_bytes)
        scripted.server.run(scripted.service.until_running(1))
    scripted.server.run(scripted.service.until_running(0))
    assert [request.request_id for request in scripted.service.requests] == scripted.service.aborted


@pytest.mark.parametrize(
    "start",
    [
        b"GET /live HTTP/1.1\r\nhost: test\r\nx: ",
        b"GET /",
        OPEN_POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ",
        OPEN_POST + b"transfer-encoding: chunked\r\n\r\n1;x=",
    ],
    ids=["header", "url", "trailer", "chunk extension"],
)
def test_a_head_without_end(scripted: ScriptedWire, start: bytes) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(start + b"a" * (http_protocol.MAX_HEAD_BYTES + 2 * http_protocol.PIECE_BYTES))
        response = read_response(connection)
    assert (response.status, response.error["code"]) == (431, "request_too_large")
    assert response.headers["connection"] == "close"


def test_a_long_head_that_is_still_allowed(scripted: ScriptedWire) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("GET", "/live", headers={"x": "a" * 60_000}))
        assert read_response(connection).status == 200


@pytest.mark.parametrize("before", [b"", b"\r\n", LIVE])
def test_a_head_that_takes_too_long(
    scripted: ScriptedWire, monkeypatch: pytest.MonkeyPatch, before: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    with connect(scripted.url) as connection:
        connection.sendall(before + b"GET /live HTTP/1.1\r\nhost: t")
        received = b"".join(pieces_until_close(connection))
    response = parse_response(received[received.index(b"HTTP/1.1 408 ") :])
    assert response.error["code"] == "request_timeout"
    assert received.count(b"HTTP/1.1 200 ") == before.count(b"GET")


def test_nonsense_after_a_request_waits_for_its_answer(scripted: ScriptedWire) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(KEPT_POST + b"?!\r\n\r\n")
        received = b"".join(pieces_until_close(connection))
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (
        parse_response(received[received.index(b"HTTP/1.1 400 ") :]).error["type"] == "invalid_request_error"
    )


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_upgrade_is_ignored(scripted: ScriptedWire, protocol: str, is_chunked: bool) -> None:
    head = OPEN_POST + b"connection: close, Upgrade\r\nupgrade: %s\r\n" % protocol.encode()
    framed = b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
    if is_chunked:
        framed = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    with connect(scripted.url) as connection:
        connection.sendall(head + framed)
        response = read_response(connection)
    assert response.status == 200
    assert response.json()["object"] == "chat.completion"


@pytest.mark.parametrize("asked", ["", "connection: keep-alive\r\n"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_http_1_0_client_gets_the_body_as_it_is(
    scripted: ScriptedWire, is_streamed: bool, asked: str
) -> None:
    scripted.say("onetwo")
    text = {"messages": [{"role": "user", "content": "hello"}], "stream": is_streamed}
    new, old = (_answer_to(scripted.url, version, asked, text) for version in ("1.1", "1.0"))
    assert new.headers.get("transfer-encoding") == ("chunked" if is_streamed else None)
    assert "transfer-encoding" not in old.headers
    assert old.headers["connection"] == "close"
    assert (old.status, old.is_complete) == (200, True)
    if is_streamed:
        assert old.body.count(b"data: ") == new.body.count(b"data: ")
        assert _spoken(old) == _spoken(new) == "onetwo"
        assert old.body.startswith(b"data: {")
        assert old.body.endswith(b"data: [DONE]\n\n")
    else:
        assert len(old.body) == int(old.headers["content-length"])
        assert old.json()["choices"] == new.json()["choices"]


def _spoken(streamed: RawResponse) -> str:
    frames = [frame.removeprefix(b"data: ") for frame in streamed.body.split(b"\n\n")[:-2]]
    return "".join(json.loads(frame)["choices"][0]["delta"].get("content", "") for frame in frames)


def _answer_to(url: str, version: str, asked: str, body: object) -> RawResponse:
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/{version}\r\nhost: test\r\ncontent-type: application/json\r\n"
    ending = "connection: close\r\n" if version == "1.1" else asked
    with connect(url) as connection:
        connection.sendall(f"{head}{ending}content-length: {len(content)}\r\n\r\n".encode() + content)
        return read_response(connection)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_head_of_either_version_gets_no_body(scripted: ScriptedWire, version: str) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(f"HEAD /v1/models HTTP/{version}\r\nconnection: close\r\nhost: t\r\n\r\n".encode())
        received = b"".join(pieces_until_close(connection))
    head, _, body = received.partition(b"\r\n\r\n")
    assert body == b""
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


def test_connect_is_refused(scripted: ScriptedWire) -> None:
    with connect(scripted.url) as connection:
        connection.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nhost: test\r\n\r\n")
        assert read_response(connection).status == 400


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_closes_its_sending_side_has_left(scripted: ScriptedWire, is_streamed: bool) -> None:
    """It cannot be told from one that has closed, and that one's blocks are to be freed at once."""
    scripted.service.script = lambda _request: Script(hang_after=2)
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "stream": is_streamed}).encode()
    with connect(scripted.url) as connection:
        connection.sendall(request_bytes("POST", CHAT, body))
        received = connection.recv(65536) if is_streamed else b""
        scripted.server.run(scripted.service.until_running(1))
        connection.shutdown(socket.SHUT_WR)
        scripted.server.run(scripted.service.until_running(0))
        received += b"".join(pieces_until_close(connection))
    assert [request.request_id for request in scripted.service.requests] == scripted.service.aborted
    if is_streamed:  # never to be taken for a whole answer
        assert not parse_response(received).is_complete
        assert b"[DONE]" not in received
    else:
        assert received == b""
