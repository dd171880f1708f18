"""HTTP/1.1 protocol with bounds on what a connection may hold: uvicorn.Config(http=HttpProtocol)."""

import asyncio
import socket
from http import HTTPStatus

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from atomesh.errors import AtomeshError, HeadTooLargeError, InvalidRequestError, RequestTimeoutError
from atomesh.frontend.http.direct_body import offer_direct_body
from atomesh.frontend.http.error_shapes import openai_shape
from atomesh.frontend.http.json_text import encode_json
from atomesh.frontend.http.request_id import mint_request_id
from atomesh.frontend.http.unframed_body import without_chunks

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 20.0
PIECE_BYTES = 4096  # parsed at a time; what a client can queue beyond one request fits in one piece
MAX_HELD_BYTES = 256 * 1024


class HttpProtocol(HttpToolsProtocol):
    """Parses no further while a pipelined request waits, and keeps reading, so that a departure is seen.

    Past MAX_HELD_BYTES of unparsed bytes it stops reading as well. `Upgrade` is ignored (RFC 9110 7.8).
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        send_at_once(transport)
        self._held = bytearray()
        self._running: RequestResponseCycle | None = None
        self._refusal: AtomeshError | None = None
        self._bytes_since_body = 0  # or since the message began: a head, trailers, a chunk's extensions
        self._awaits_head = True
        self._is_amid_head = False
        self._ignores_upgrade = False
        self._head_timer: asyncio.TimerHandle | None = None
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._unset_keepalive_if_required()
        self._held.clear()
        running = [] if self._running is None else [self._running]
        for cycle in (*running, *(cycle for cycle, _ in self.pipeline)):
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._refusal is None:
            self._held += data
            self._parse_held()

    def _parse_held(self) -> None:
        while self._held and not self.pipeline and not self.transport.is_closing():
            piece = bytes(self._held[:PIECE_BYTES])
            del self._held[:PIECE_BYTES]
            self._parse(piece)
        if len(self._held) > MAX_HELD_BYTES:
            self.flow.pause_reading()

    def _parse(self, piece: bytes) -> None:
        self._bytes_since_body += len(piece)
        self._is_amid_head = self._is_amid_head or self._awaits_head
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._start_again_without_upgrade(piece[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(InvalidRequestError("Invalid HTTP request received."))
        if self._is_amid_head and self._refusal is None:
            self._start_head_timer()
        if self._bytes_since_body > MAX_HEAD_BYTES:
            self._refuse(HeadTooLargeError(f"the request's head or trailers exceed {MAX_HEAD_BYTES} bytes"))

    def _start_again_without_upgrade(self, rest: bytes) -> None:
        """The parser takes no body after an Upgrade header; a new one reads the same head without it."""
        version = self.parser.get_http_version().encode()
        head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        head += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._ignores_upgrade = False
        self._awaits_head = True
        self._held[:0] = b"\r\n".join(head) + b"\r\n\r\n" + rest

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._bytes_since_body = 0
        self._is_amid_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._awaits_head:  # trailers are dropped
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._awaits_head = self._is_amid_head = False
        self._bytes_since_body = 0
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise InvalidRequestError("only HTTP/1.0 and HTTP/1.1 are spoken here")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise InvalidRequestError("CONNECT is not supported")
            self._ignores_upgrade = True
            return
        super().on_headers_complete()
        if self.pipeline:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        self._bytes_since_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignores_upgrade:
            return
        self._awaits_head = True
        self._bytes_since_body = 0
        super().on_message_complete()
        self.cycle.more_body = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        offer_direct_body(cycle)
        super()._start_asgi_task(cycle, without_chunks(app, cycle))

    def on_response_complete(self) -> None:
        if self._refusal is not None and not self._has_whole_request_waiting():
            self.server_state.total_requests += 1
            self._answer_refusal(self._refusal)
            return
        super().on_response_complete()
        self._parse_held()

    def _has_whole_request_waiting(self) -> bool:
        return bool(self.pipeline) and not self.pipeline[-1][0].more_body

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_late_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_late_head(self) -> None:
        self._head_timer = None
        if self.pipeline:  # it is we who do not read on
            self._start_head_timer()
        else:
            self._refuse(RequestTimeoutError(f"the request's head took more than {HEAD_TIMEOUT_S:g} s"))

    def _refuse(self, error: AtomeshError) -> None:
        """Answers `error` once what came whole before it has its answers, and closes."""
        if self._refusal is not None:
            return
        self._refusal = error
        self._held.clear()
        self._stop_head_timer()
        running = self._running
        if running is None or running.response_complete or running.more_body:
            self._answer_refusal(error)

    def _answer_refusal(self, error: AtomeshError) -> None:
        if self.transport.is_closing():
            return
        running = self._running
        is_answered = running is not None and running.more_body and running.response_started
        if not is_answered:
            self.transport.write(_error_response(error))
        self.transport.close()


def send_at_once(transport: asyncio.BaseTransport) -> None:
    """Without waiting for the client's word that it has what went before: that may take it 40 ms.

    asyncio does so of itself, but not for what a listener accepts that does not name its protocol.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _error_response(error: AtomeshError) -> bytes:
    body = encode_json(openai_shape(error))
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n"
        f"x-request-id: {mint_request_id().decode()}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
