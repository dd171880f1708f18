"""Just enough of HTTP/1.1's server side for a mock engine that must cost less than what is measured. Pure."""

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 2**10
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class MockRequest:
    method: str
    path: str
    body: bytes


class RequestReader:
    """Requests of one connection, with bodies of a stated length alone."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[MockRequest]:
        """Those that `data` completes. Raises ValueError for what this is not made for."""
        self._data += data
        found = []
        while (request := self._next()) is not None:
            found.append(request)
        return found

    def _next(self) -> MockRequest | None:
        head, blank, rest = self._data.partition(b"\r\n\r\n")
        if not blank:
            if len(head) > MAX_HEAD_BYTES:
                raise ValueError(f"a request's head has more than {MAX_HEAD_BYTES} bytes")
            return None
        length = _content_length(head.lower())
        if len(rest) < length:
            return None
        self._data = rest[length:]
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        return MockRequest(method, path.partition("?")[0], rest[:length])


def _content_length(head: bytes) -> int:
    if b"\r\ntransfer-encoding:" in head:
        raise ValueError("a request's body comes in chunks; the mock takes one of a stated length")
    _, _, value = head.partition(b"\r\ncontent-length:")
    return int(value.split(b"\r\n", 1)[0] or b"0")


def whole_answer(body: bytes, content_type: str = "application/json", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} Mock\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
