"""Asks a server of ours over HTTP whether it is ready; no more of a client than that needs."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

POLL_S = 0.1
REQUEST_S = 2.0


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a worker's engine came to from the flags, the model and the machine."""

    dtype: str
    max_model_len: int
    kv_tokens: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """`host` is one that can be connected to; `api_key` is sent where there is one."""

    host: str
    port: int
    api_key: str | None = None
    admin_token: str | None = None

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def reachable_host(bound: str) -> str:
    """The host to connect to when a server listens on `bound`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(bound, bound)  # noqa: S104


@dataclass(frozen=True, slots=True)
class ServedFacts:
    """The first served model, and the engines that the workers run it with, each kind once."""

    model: str
    engines: tuple[EngineFacts, ...]


async def wait_until_ready(server: ServerAddress) -> ServedFacts:
    """Returns once `/ready` says yes."""
    while True:
        if await _get(server, "/ready") is not None:
            models = await _get(server, "/v1/models", server.api_key)
            workers = await _get(server, "/workers", server.admin_token)
            if models is not None and workers is not None:
                return ServedFacts(str(models["data"][0]["id"]), _engines(workers["workers"]))
        await asyncio.sleep(POLL_S)


def _engines(workers: list[dict[str, Any]]) -> tuple[EngineFacts, ...]:
    told = (worker["engine"] for worker in workers if worker["engine"] is not None)
    return tuple(dict.fromkeys(EngineFacts(**engine) for engine in told))


async def _get(server: ServerAddress, path: str, key: str | None = None) -> dict[str, Any] | None:
    """The JSON object of a 200 answer; None for any other answer, or none."""
    try:
        raw = await asyncio.wait_for(_exchange(server, path, key), REQUEST_S)
        head, _, body = raw.partition(b"\r\n\r\n")
        answer = json.loads(body) if head.split(b" ", 2)[1:2] == [b"200"] else None
    except (OSError, TimeoutError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


async def _exchange(server: ServerAddress, path: str, key: str | None) -> bytes:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        bearer = f"authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{bearer}connection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()
