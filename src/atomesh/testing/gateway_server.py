"""A whole gateway in this process, over real HTTP, for models that have no files."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from atomesh.clock import MonotonicClock
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate

if TYPE_CHECKING:
    from atomesh.frontend.templates.chat_template import ChatTemplate
    from atomesh.frontend.text.tokenizer import Tokenizer

READY_S = 10.0


class _Template(PlainChatTemplate):
    def close(self) -> None:
        """There is no process to end."""


def byte_text(_model: ModelDescription) -> TextSide:
    """Every token is a byte."""
    return TextSide(cast("Tokenizer", ByteTokenizer()), cast("ChatTemplate", _Template()))


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(slots=True)
class GatewayServer:
    gateway: Gateway
    task: "asyncio.Task[None]"
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """Of `headers` each `_` stands for a hyphen; the body is read as JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, path, json=body, headers=named) as response:
            return Reply(response.status, response.headers, json.loads(await response.text()))

    async def until(self, status: int) -> None:
        """Returns when GET /ready answers so."""
        async with asyncio.timeout(READY_S):
            while (await self.ask("GET", "/ready")).status != status:  # noqa: ASYNC110  as a client would
                await asyncio.sleep(0.01)


@asynccontextmanager
async def gateway_server(
    options: GatewayOptions,
    text: Callable[[ModelDescription], TextSide] = byte_text,
    trusted: ssl.SSLContext | None = None,
) -> AsyncIterator[GatewayServer]:
    """On a free port of 127.0.0.1 until the end of the block; over TLS to a client that trusts so."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "http" if trusted is None else "https"
    url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    gateway = Gateway(options, text, MonotonicClock())
    task = asyncio.create_task(gateway.run(listener))
    connector = aiohttp.TCPConnector(limit=0, ssl=trusted or True)
    async with aiohttp.ClientSession(url, connector=connector) as http:
        try:
            yield GatewayServer(gateway, task, http)
        finally:
            gateway.stop()
            gateway.stop()
            await asyncio.wait((task,))
