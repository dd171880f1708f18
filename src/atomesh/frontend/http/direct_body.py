"""The short way out for a stream's chunks: past the layers around a route, which only look at its beginning.

A layer that wants more than the start of a response and its first bytes would not see them.
"""

from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "atomesh.direct_body"  # in an ASGI scope


class DirectBody(Protocol):
    def write(self, chunk: bytes) -> bool:
        """Send it now. False, and nothing sent, where it must go the usual way: as ASGI message, in turn."""
        ...


class NoDirectBody:
    """Every chunk goes the usual way."""

    def write(self, chunk: bytes) -> bool:
        return False


class DirectChunks:
    """Of a response that uvicorn sends in chunks of HTTP/1.1, while the client takes them."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, chunk: bytes) -> bool:
        cycle = self._cycle
        if not cycle.chunked_encoding or cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True


def offer_direct_body(cycle: RequestResponseCycle) -> None:
    """To the application that answers it."""
    cycle.scope[_KEY] = DirectChunks(cycle)  # type: ignore[literal-required]


def direct_body(scope: Scope) -> DirectBody:
    """What the server offers for this response."""
    found: DirectBody = scope.get(_KEY, NO_DIRECT_BODY)
    return found


NO_DIRECT_BODY = NoDirectBody()
