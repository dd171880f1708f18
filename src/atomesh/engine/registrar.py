"""A worker makes itself known to gateways, again and again, and says when it leaves."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from atomesh.protocol.registration import PATH, RENEW_S, Kind, Offer, Registration, register
from atomesh.tls_trust import distrust

_log = logging.getLogger(__name__)

PATIENCE_S = 3.0
MAX_ANSWER_BYTES = 4096
MAX_TOLD_BYTES = 300


class Door(Protocol):
    """One gateway's. Both raise OSError when nobody answers, or not with a 200."""

    @property
    def url(self) -> str: ...

    async def ask(self) -> Offer: ...

    async def tell(self, message: Registration) -> None: ...


class HttpDoor:
    def __init__(self, url: str) -> None:
        """`url` as http://HOST:PORT."""
        self.url = url.rstrip("/")

    async def ask(self) -> Offer:
        try:
            return msgspec.json.decode(await self._call("GET", None), type=Offer)
        except msgspec.DecodeError as error:
            raise OSError(f"no nonce from {self.url}: {error}") from error

    async def tell(self, message: Registration) -> None:
        await self._call("POST", msgspec.json.encode(message))

    async def _call(self, method: str, body: bytes | None) -> bytes:
        import aiohttp  # only workers that register need it

        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(method, self.url + PATH, data=body) as response,
            ):
                text = await response.content.read(MAX_ANSWER_BYTES)
                if response.status != 200:
                    raise OSError(f"{self.url} answers {response.status}: {_message_in(text)}")
                return text
        except (aiohttp.ClientError, TimeoutError) as error:
            why = distrust(error) or f"it does not answer: {error}"
            raise OSError(f"the gateway at {self.url} cannot be used: {why}") from error


class _Words(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Words


def _message_in(body: bytes) -> str:
    """What an error of a gateway's says; of anything else, how it begins."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error.message
    except (msgspec.DecodeError, UnicodeError):
        return body[:MAX_TOLD_BYTES].decode(errors="replace")


class Registrar:
    """`run` keeps all gateways told, also those that were restarted; `leave` tells them once."""

    def __init__(self, doors: Sequence[Door], secret: bytes, address: str, incarnation: str) -> None:
        self._doors = doors
        self._secret = secret
        self._address = address
        self._incarnation = incarnation
        self._missed: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tell_all("register")
            await asyncio.sleep(RENEW_S)

    async def leave(self) -> None:
        await self.tell_all("leave")

    async def tell_all(self, kind: Kind) -> None:
        """Who does not answer is told the next time."""
        await asyncio.gather(*(self._tell(door, kind) for door in self._doors))

    async def _tell(self, door: Door, kind: Kind) -> None:
        try:
            offer = await door.ask()
            await door.tell(register(self._secret, kind, self._address, self._incarnation, offer.nonce))
        except OSError as error:
            if door.url not in self._missed:
                _log.warning("cannot register: %s", error)
            self._missed.add(door.url)
        else:
            self._missed.discard(door.url)


class KeptRegistration:
    """A registrar's task: from the worker's first moment until it is told to stop."""

    def __init__(self) -> None:
        self._registrar: Registrar | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def begin(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._renewing = asyncio.create_task(registrar.run())

    def end(self) -> None:
        """Tell the gateways, and do not wait for it. A second call changes nothing."""
        if self._registrar is None or self._renewing is None or self._leaving is not None:
            return
        self._renewing.cancel()
        self._leaving = asyncio.create_task(self._registrar.leave())

    async def over(self) -> None:
        """Once all have been told."""
        self.end()
        if self._leaving is not None:
            await self._leaving
