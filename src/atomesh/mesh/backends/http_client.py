"""The one HTTP connection pool to a foreign server: bounded, no redirects, its errors translated."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp.http import HttpProcessingError

from atomesh.errors import EngineError
from atomesh.mesh.backends.foreign_errors import to_error
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.tls_trust import distrust

CONNECT_S = 2.0
KEEP_ALIVE_S = 3.0  # servers close after 5 s without a request; who reuses a connection must be earlier
MAX_CONNECTIONS = 4096
MAX_ANSWER_BYTES = 64 * 2**20
MAX_ERROR_BYTES = 64 * 2**10
END_S = 0.2  # for what is left of an answer that nobody reads on
# No answer, and what is no HTTP: there is nobody whom one could ask there.
LOSSES = (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError)


@dataclass(slots=True)
class StreamedAnswer:
    """A 200 whose body is still coming. With `is_enough` what is left of it may come unread."""

    content_type: str
    _response: aiohttp.ClientResponse
    is_enough: bool = False

    async def read(self) -> bytes:
        """All that has arrived, once something has; nothing at the end. Raises WorkerLostError when the body
        breaks off."""
        try:
            return await self._response.content.readany()
        except LOSSES:
            raise WorkerLostError from None

    async def chunks(self) -> AsyncIterator[bytes]:
        """As `read` gives them."""
        while chunk := await self.read():
            yield chunk

    async def whole(self) -> bytes:
        """Raises WorkerLostError when the body breaks off, EngineError when it is too long."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise EngineError(
                    f"the engine's answer has more than {MAX_ANSWER_BYTES >> 20} MiB; ask for less"
                )
        return bytes(body)


class HttpClient:
    """Connections are made when first needed, in the loop that runs then."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {"accept-encoding": "identity"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def get(self, path: str, timeout_s: float) -> bytes:
        """As `ask`, within `timeout_s`; TimeoutError after it."""
        async with asyncio.timeout(timeout_s), self.ask("GET", path) as answer:
            return await answer.whole()

    async def post(self, path: str, body: bytes, timeout_s: float) -> bytes:
        async with asyncio.timeout(timeout_s), self.ask("POST", path, body) as answer:
            return await answer.whole()

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[StreamedAnswer]:
        """A 200's answer. Leaving the block before its end closes the connection, which ends the request; an
        answer that `is_enough` has END_S to end, unwatched, for its connection to be used again.

        Raises WorkerLostError when nobody answers, and what `to_error` makes of any other status.
        """
        sent = {**(headers or {}), **({} if body is None else {"content-type": "application/json"})}
        try:
            response = await self._open().request(
                method, self._url + path, data=body, headers=sent, allow_redirects=False
            )
        except LOSSES as error:
            raise WorkerLostError(distrust(error) or "") from None
        answer = StreamedAnswer(response.headers.get("content-type", ""), response)
        try:
            if response.status != 200:
                raise to_error(
                    response.status, await _start_of(response), response.headers.get("retry-after")
                )
            yield answer
        finally:
            if response.content.at_eof():
                response.release()
            elif answer.is_enough:
                self._end_later(response)
            else:
                response.close()

    def _end_later(self, response: aiohttp.ClientResponse) -> None:
        ending = asyncio.create_task(_end(response))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        for ending in self._ending:
            ending.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**20,
            )
        return self._session


async def _end(response: aiohttp.ClientResponse) -> None:
    """Pass over the rest, which is little; what does not end soon is cut off."""
    try:
        async with asyncio.timeout(END_S):
            while await response.content.readany():
                pass
    except LOSSES:
        pass
    finally:
        response.close()  # a connection that the end of the body gave back is not touched


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """As much of an error as its message needs."""
    body = bytearray()
    try:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) >= MAX_ERROR_BYTES:
                break
    except LOSSES:
        pass
    return bytes(body[:MAX_ERROR_BYTES])
