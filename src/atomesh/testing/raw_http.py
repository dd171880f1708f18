"""An HTTP client that hides nothing: raw bytes out, raw bytes and the manner of their end back."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class RawResponse:
    """`body` is without the chunked framing; `is_complete` says whether it ended properly."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_complete: bool

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, after a check that the body is nothing else and has all its fields."""
        body = self.json()
        if list(body) != ["error"] or sorted(body["error"]) != ["code", "message", "param", "type"]:
            raise AssertionError(f"this is no error body: {body}")
        error: dict[str, Any] = body["error"]
        return error


@contextmanager
def connect(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=TIMEOUT_S) as connection:
        yield connection


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole request that asks for the connection to be closed after it."""
    fields = {"host": "test", "connection": "close", **(headers or {})}
    if body:
        fields = {"content-type": "application/json", "content-length": str(len(body)), **fields}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def send(
    url: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> RawResponse:
    """`body` is sent as it is if it is bytes, else as JSON."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    with connect(url) as connection:
        connection.sendall(request_bytes(method, path, data, headers))
        return read_response(connection)


def read_response(connection: socket.socket) -> RawResponse:
    """Reads until the server closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return parse_response(received)


def parse_response(received: bytes) -> RawResponse:
    head, _, rest = received.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    fields = (line.partition(": ") for line in lines)
    headers = {name.lower(): value for name, _, value in fields}
    body, is_complete = rest, len(rest) == int(headers.get("content-length", len(rest)))
    if headers.get("transfer-encoding") == "chunked":
        body, is_complete = _unchunk(rest)
    return RawResponse(int(status_line.split(" ")[1]), headers, body, is_complete)


def _unchunk(data: bytes) -> tuple[bytes, bool]:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return body, data == b"\r\n"
        body, data = body + data[:length], data[length + 2 :]
    return body, False
