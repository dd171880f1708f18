"""The narrow door to an OpenAI-compatible server: its models, and streams of events with the time they came.

Every failure, of the network or of the server, is a RequestFailed.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from atomesh.bench.completion_stream import Completion, CompletionStream, Piece
from atomesh.bench.failures import RequestFailed
from atomesh.bench.sse import EventDecoder, ServerEvent
from atomesh.clock import Clock, MonotonicClock

MAX_ERROR_BYTES = 64 * 2**10
MODELS_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 1.0


class OpenAIClient:
    """`url` is the server's root, with or without /v1. Use it as an async context manager."""

    def __init__(self, url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        """`url` is the server's root, with or without /v1; without a scheme it is http."""
        self.url = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock or MonotonicClock()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "OpenAIClient":
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=2**20,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def models(self) -> list[str]:
        """The ids the server lists."""
        async with _failures_translated(MODELS_TIMEOUT_S), self._open("GET", "/v1/models") as response:
            body = msgspec.json.decode(await response.read())
        try:
            return [str(entry["id"]) for entry in body["data"]]
        except (KeyError, TypeError) as error:
            raise RequestFailed("malformed answer", "/v1/models has no list of models") from error

    async def complete(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None) -> Completion:
        """Sends, reads to the end, and returns the whole."""
        stream = CompletionStream()
        async for _ in self.pieces(path, body, stream, timeout_s=timeout_s):
            pass
        return stream.result()

    async def pieces(
        self, path: str, body: Mapping[str, Any], stream: CompletionStream, *, timeout_s: float | None
    ) -> AsyncGenerator[Piece, None]:
        """What each event brings, as it comes; the caller asks `stream` for the whole once this has ended."""
        async with _failures_translated(timeout_s), self._open("POST", path, body) as response:
            _require_event_stream(response)
            async for event, now in self._events(response):
                yield stream.observe(event, now)
                if stream.is_done:
                    await _drain(response.content)
                    return

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[tuple[ServerEvent, float]]:
        decoder = EventDecoder()
        try:
            async for data in response.content.iter_any():
                now = self._clock.now()
                for event in decoder.feed(data):
                    yield event, now
        except (aiohttp.ClientError, ConnectionError, ValueError) as error:
            raise RequestFailed("cut stream", _words(error)) from error

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("an OpenAIClient is used inside `async with`")
        headers = {"content-type": "application/json"} if body is not None else {}
        data = msgspec.json.encode(body) if body is not None else None
        async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
            if response.status != 200:
                raise await _refusal(response)
            yield response


@asynccontextmanager
async def _failures_translated(timeout_s: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise RequestFailed("timeout", f"not finished within {timeout_s} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise RequestFailed("no connection", _words(error)) from error
    except msgspec.DecodeError as error:
        raise RequestFailed("malformed answer", _words(error)) from error


def _require_event_stream(response: aiohttp.ClientResponse) -> None:
    if response.content_type != "text/event-stream":
        raise RequestFailed("not a stream", f"the answer is {response.content_type}, not text/event-stream")


async def _refusal(response: aiohttp.ClientResponse) -> RequestFailed:
    text = await _read_at_most(response.content, MAX_ERROR_BYTES)
    error: Any = None
    with suppress(msgspec.DecodeError, AttributeError):
        error = msgspec.json.decode(text).get("error")
    if not isinstance(error, dict):
        error = {"message": error or text.decode("utf-8", "replace") or response.reason}
    param = error.get("param")
    return RequestFailed(
        f"HTTP {response.status}",
        str(error.get("message", ""))[:1000],
        status=response.status,
        param=param if isinstance(param, str) else None,
    )


async def _read_at_most(content: aiohttp.StreamReader, limit: int) -> bytes:
    try:
        return await content.readexactly(limit)
    except asyncio.IncompleteReadError as short:
        return short.partial


async def _drain(content: aiohttp.StreamReader) -> None:
    """Reads what follows the end of the stream, so that the connection can be used again."""
    with suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while not content.at_eof():
                await content.readany()


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return str(error) or type(error).__name__
