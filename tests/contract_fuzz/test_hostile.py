"""What means harm, on a real server: answered with a 4xx, soon, and nothing is lost by it (FAULTS.md F4)."""

import gzip
import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from atomesh.testing.hostile_grammars import chat_with, hostile_outputs, hostile_tools
from atomesh.testing.hostile_requests import AMBIGUOUS, BROKEN_JSON, CHAT, HELLO, TEXT, nested, too_many
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.process_memory import lasting_bytes, resident_bytes
from atomesh.testing.raw_http import RawResponse, connect, parse_response, request_bytes, send

SOON_S = 10.0  # on a busy machine; a second when it is idle
MAX_BODY = 16 * 2**20
PIECE = b"x" * 2**16
MAX_GROWTH = 48 * 2**20  # from one round of all that is hostile to the next
LONE = "\ud800"  # half of a character

Asked = tuple[str, str, Any]  # what it is, the path, and the body


def fault_of(bench: PDBench, path: str, body: Any, *, may_be_served: bool = False) -> str:
    """What is not as it must be of the answer, in words."""
    began = time.monotonic()
    response = send(bench.served.url, "POST", path, body)
    took = time.monotonic() - began
    if took > SOON_S:
        return f"answered after {took:.1f} s"
    if may_be_served and response.status == 200:
        return ""
    return fault_of_refusal(response)


def fault_of_refusal(response: RawResponse) -> str:
    if not 400 <= response.status < 500:
        return f"status {response.status}: {response.body[:200]!r}"
    body = response.json()
    is_anthropic = body.get("type") == "error"
    message = (body["error"] if is_anthropic else response.error)["message"]
    return "" if 0 < len(message) <= 1000 else f"a message of {len(message)} characters"


def check(bench: PDBench, asked: Iterable[Asked], *, may_be_served: bool = False) -> None:
    faults = {name: fault_of(bench, path, body, may_be_served=may_be_served) for name, path, body in asked}
    assert faults
    assert {name: fault for name, fault in faults.items() if fault} == {}


def read_all(connection: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += part
    return received


def gateway_bytes(bench: PDBench) -> int:
    return resident_bytes(bench.gateway_pid())


def broken() -> Iterator[Asked]:
    yield from ((name, TEXT, body) for name, body in BROKEN_JSON.items())


def grammars() -> Iterator[Asked]:
    yield from ((name, CHAT, chat_with(fields)) for name, fields in hostile_outputs())


def tools() -> Iterator[Asked]:
    yield from ((name, CHAT, chat_with(fields)) for name, fields in hostile_tools())


def lone_surrogates() -> Iterator[Asked]:
    for fields in (
        {"model": LONE},
        {"stop": [LONE]},
        {"bad_words": [LONE]},
        {"cache_salt": LONE},
        {"prompt_cache_key": LONE},
        {"user": LONE},
        {LONE: 1},
        {"metadata": {LONE: LONE}},
        {"chat_template_kwargs": {"enable_thinking": LONE}},
        {"messages": [{"role": "user", "content": LONE}]},
        {"messages": [{"role": LONE, "content": "a"}]},
        {"messages": [{"role": "user", "content": "a", "name": LONE}]},
        {"messages": [{"role": "user", "content": "a\x00b\x1b[2J"}]},
        {"stop": ["\x00"]},
        {"tools": [{"type": "function", "function": {"name": "f", "description": LONE}}]},
        {"structured_outputs": {"regex": LONE}},
        {"structured_outputs": {"choice": [LONE]}},
    ):
        for stream in (False, True):
            body = {"messages": HELLO, "max_tokens": 2, "stream": stream, **fields}
            yield f"{fields!a} {stream}", CHAT, json.dumps(body).encode()


def test_what_is_no_request(bench: PDBench) -> None:
    check(bench, broken())


def test_too_many(bench: PDBench) -> None:
    check(bench, too_many())


def test_what_is_nested(bench: PDBench) -> None:
    check(bench, nested(), may_be_served=True)


def test_texts_that_are_none(bench: PDBench) -> None:
    check(bench, lone_surrogates(), may_be_served=True)


def test_grammars(bench: PDBench) -> None:
    check(bench, grammars(), may_be_served=True)


def test_tools(bench: PDBench) -> None:
    check(bench, tools(), may_be_served=True)


def test_nobody_is_smuggled_in(bench: PDBench) -> None:
    """What hides behind a request that two readers may frame differently is never answered."""
    faults = {name: fault_of_frames(bench, raw) for name, raw in AMBIGUOUS.items()}
    assert {name: fault for name, fault in faults.items() if fault} == {}


def fault_of_frames(bench: PDBench, raw: bytes) -> str:
    with connect(bench.served.url) as connection:
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        received = read_all(connection)
    statuses = [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]
    if not statuses or any(status == 401 or not 400 <= status < 500 for status in statuses):
        return f"answers {statuses}, and 401 were to the smuggled one"
    return fault_of_refusal(parse_response(received[received.rindex(b"HTTP/1.1 ") :]))


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip"])
def test_packed_bodies_are_not_opened(bench: PDBench, coding: str) -> None:
    bomb = gzip.compress(bytes(2**20))
    response = send(bench.served.url, "POST", TEXT, bomb, {"content-encoding": coding})
    assert (response.status, fault_of_refusal(response)) == (415, "")


def test_doubled_names_count_once(bench: PDBench) -> None:
    """The last one, for what is read and for what is refused."""
    body = b'{"prompt":"a","max_tokens":4,"max_tokens":1,"temperature":0}'
    response = send(bench.served.url, "POST", TEXT, body)
    assert (response.status, response.json()["usage"]["completion_tokens"]) == (200, 1)
    refused = b'{"prompt":"a","kv_transfer_params":null,"kv_transfer_params":{"a":1}}'
    assert send(bench.served.url, "POST", TEXT, refused).error["param"] == "kv_transfer_params"


FRAMED: Mapping[str, tuple[dict[str, str], bytes]] = {
    "said to be 100 MB": ({"content-length": "104857600"}, PIECE),
    "large chunks": ({"transfer-encoding": "chunked"}, b"%x\r\n%b\r\n" % (len(PIECE), PIECE)),
    "small chunks": ({"transfer-encoding": "chunked"}, b"a\r\n0123456789\r\n" * 4096),
}


@pytest.mark.parametrize("name", FRAMED)
def test_a_body_without_end(bench: PDBench, name: str) -> None:
    """Refused as soon as it is known to be too long; more of it is not taken in."""
    before = gateway_bytes(bench)
    headers, piece = FRAMED[name]
    with connect(bench.served.url) as connection:
        connection.sendall(
            request_bytes("POST", CHAT, headers={"content-type": "application/json", **headers})
        )
        sent = send_until_refused(connection, piece, 100 * 2**20)
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 413 ") or not received  # reset before it could be read
    assert sent < 100 * 2**20
    assert gateway_bytes(bench) - before < 8 * MAX_BODY


def send_until_refused(connection: socket.socket, piece: bytes, most: int) -> int:
    """Bytes that went before the server closed."""
    sent = 0
    with suppress(ConnectionError):
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    return sent


def test_a_body_shorter_than_its_length(bench: PDBench) -> None:
    """The client leaves before its end: there is nobody to answer."""
    head = request_bytes("POST", CHAT, headers={"content-type": "application/json", "content-length": "1000"})
    with connect(bench.served.url) as connection:
        connection.sendall(head + b'{"messages":')
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


@pytest.mark.parametrize(
    "headers",
    [
        b"a: b\r\n" * 20_000,
        b"".join(b"h%d: x\r\n" % number for number in range(20_000)),
        b"cookie: " + b"c" * 10**6 + b"\r\n",
    ],
    ids=["one name", "many names", "a long one"],
)
def test_a_bomb_of_headers(bench: PDBench, headers: bytes) -> None:
    with connect(bench.served.url) as connection:
        with suppress(ConnectionError):
            connection.sendall(b"GET /live HTTP/1.1\r\nhost: t\r\n" + headers + b"\r\n")
        received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 431 ") or not received


@pytest.mark.soak
def test_a_second_round_takes_no_more_memory(bench: PDBench) -> None:
    sizes = []
    for _ in range(2):
        for asked in (broken, too_many, nested, lone_surrogates, grammars, tools):
            for _name, path, body in asked():
                assert send(bench.served.url, "POST", path, body).status < 500
        sizes.append(lasting_bytes(bench))
    first, second = sizes
    grown = {name: second[name] - size for name, size in first.items()}
    assert all(size < MAX_GROWTH for size in grown.values()), grown
