"""Asks a server of ours over HTTP whether it is ready; no more of a client than that needs."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

POLL_S = 0.1
REQUEST_S = 2.0


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`host` is one that can be connected to; `api_key` is sent where there is one."""

    host: str
    port: int
    api_key: str | None

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def reachable_host(bound: str) -> str:
    """The host to connect to when a server listens on `bound`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bound, bound)  # noqa: S104


async def wait_until_ready(server: ServerAddress) -> str:
    """Returns the id of the first served model once `/ready` says yes."""
    while True:
        if await _get(server, "/ready") is not None:
            models = await _get(server, "/v1/models")
            if models is not None:
                return str(models["data"][0]["id"])
        await asyncio.sleep(POLL_S)


async def _get(server: ServerAddress, path: str) -> dict[str, Any] | None:
    """The JSON object of a 200 answer; None for any other answer, or none."""
    try:
        raw = await asyncio.wait_for(_exchange(server, path), REQUEST_S)
        head, _, body = raw.partition(b"\r\n\r\n")
        answer = json.loads(body) if head.split(b" ", 2)[1:2] == [b"200"] else None
    except (OSError, TimeoutError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


async def _exchange(server: ServerAddress, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        key = f"authorization: Bearer {server.api_key}\r\n" if server.api_key else ""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{key}connection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()
