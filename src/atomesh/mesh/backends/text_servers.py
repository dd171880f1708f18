"""The servers that take text and give text, by address: whom to ask, and how to end what they answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.http_client import HttpClient


class TextServer:
    """`suspected` is set when an answer broke off: it is to be asked at once whether it is there."""

    def __init__(self, client: HttpClient) -> None:
        self.client = client
        self.suspected = asyncio.Event()
        self._running: set[asyncio.Timeout] = set()
        self._ended_by: AtomeshError | None = None

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Around one answer, which `end` cancels: its error is raised then."""
        limit = asyncio.timeout(None)
        self._running.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired() or self._ended_by is None:
                raise
            raise self._ended_by from None
        finally:
            self._running.discard(limit)

    def end(self, error: AtomeshError) -> None:
        """Whatever it answers now."""
        self._ended_by = error
        while self._running:
            self._running.pop().reschedule(asyncio.get_running_loop().time())


class TextServers(Mapping[str, TextServer]):
    """Those that are there, and those that may come back."""

    def __init__(self) -> None:
        self._servers: dict[str, TextServer] = {}

    def __getitem__(self, address: str) -> TextServer:
        return self._servers[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def join(self, address: str, server: TextServer) -> None:
        self._servers[address] = server

    def leave(self, address: str) -> None:
        self._servers.pop(address, None)

    def end_all(self, error: AtomeshError) -> None:
        for server in self._servers.values():
            server.end(error)
