"""The one HTTP connection pool to a foreign server: bounded, no redirects, its errors translated."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp

from atomesh.errors import EngineError
from atomesh.mesh.backends.foreign_errors import to_error
from atomesh.mesh.backends.worker_lost import WorkerLostError

CONNECT_S = 2.0
KEEP_ALIVE_S = 3.0  # servers close after 5 s without a request; who reuses a connection must be earlier
MAX_CONNECTIONS = 4096
MAX_ANSWER_BYTES = 64 * 2**20
MAX_ERROR_BYTES = 64 * 2**10
LOSSES = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError, TimeoutError)


@dataclass(frozen=True, slots=True)
class StreamedAnswer:
    """A 200 whose body is still coming."""

    content_type: str
    _response: aiohttp.ClientResponse

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

    async def until_end(self, within_s: float) -> None:
        """Pass over what is left of the body, which is little, so that its connection can be used again."""
        with suppress(WorkerLostError, TimeoutError):
            async with asyncio.timeout(within_s):
                while await self.read():
                    pass

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
        """A 200's answer. Leaving the block before its end closes the connection, which ends the request.

        Raises WorkerLostError when nobody answers, and what `to_error` makes of any other status.
        """
        sent = {**(headers or {}), **({} if body is None else {"content-type": "application/json"})}
        try:
            response = await self._open().request(
                method, self._url + path, data=body, headers=sent, allow_redirects=False
            )
        except LOSSES:
            raise WorkerLostError from None
        try:
            if response.status != 200:
                raise to_error(
                    response.status, await _start_of(response), response.headers.get("retry-after")
                )
            yield StreamedAnswer(response.headers.get("content-type", ""), response)
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def close(self) -> None:
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
