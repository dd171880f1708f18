"""Asks a server of ours over HTTP whether it is ready; no more of a client than that needs."""

import asyncio
import json
import ssl
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
    """`host` is one that can be connected to; `needs_key` says whether clients must send one."""

    host: str
    port: int
    admin_token: str | None = None
    needs_key: bool = False
    is_tls: bool = False

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


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
            workers = await _get(server, "/workers", server.admin_token)
            if workers is not None and (models := _models(workers["workers"])):
                return ServedFacts(models[0], _engines(workers["workers"]))
        await asyncio.sleep(POLL_S)


def _models(workers: list[dict[str, Any]]) -> list[str]:
    return [worker["model"] for worker in workers if worker["model"] is not None]


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


def _unverified() -> ssl.SSLContext:
    """For a server on this machine that we have started ourselves; its certificate is for its public name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _exchange(server: ServerAddress, path: str, key: str | None) -> bytes:
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=_unverified() if server.is_tls else None
    )
    try:
        bearer = f"authorization: Bearer {key}\r\n" if key else ""
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{bearer}connection: close\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.close()
