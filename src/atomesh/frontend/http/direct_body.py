"""The short way out for a stream's chunks: past the layers around a route, which only look at its beginning.

A layer that wants more than the start of a response and its first bytes would not see them.
"""

from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_KEY = "atomesh.direct_body"  # in an ASGI scope


class DirectBody(Protocol):
    @property
    def is_free(self) -> bool:
        """Whether a chunk can go now; else it must go the usual way: as ASGI message, in turn."""
        ...

    def write(self, chunk: bytes) -> None:
        """Send it now, while it is free."""
        ...


class NoDirectBody:
    """Every chunk goes the usual way."""

    is_free = False

    def write(self, chunk: bytes) -> None:
        raise AssertionError("a chunk was written to a response that takes none directly")


class DirectChunks:
    """Of a response that uvicorn sends in chunks of HTTP/1.1, while the client takes them."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_free(self) -> bool:
        cycle = self._cycle
        return bool(cycle.chunked_encoding and not cycle.flow.write_paused and not cycle.disconnected)

    def write(self, chunk: bytes) -> None:
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))


def offer_direct_body(cycle: RequestResponseCycle) -> None:
    """To the application that answers it."""
    cycle.scope[_KEY] = DirectChunks(cycle)  # type: ignore[literal-required]


def direct_body(scope: Scope) -> DirectBody:
    """What the server offers for this response."""
    found: DirectBody = scope.get(_KEY, NO_DIRECT_BODY)
    return found


NO_DIRECT_BODY = NoDirectBody()
