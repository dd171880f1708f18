"""Where workers are to be found that nobody names one by one: a file that is watched, a name in the DNS."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from atomesh.errors import ConfigurationError
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.cluster.membership import Change, Membership
from atomesh.protocol.address import TcpAddress, parse_address

_log = logging.getLogger(__name__)

FILE_POLL_S = 1.0
DNS_POLL_S = 10.0
MAX_FILE_BYTES = 2**20
COMMAND_LINE = "the command line"
EXPECTED = (OSError, UnicodeError, ConfigurationError)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Source(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def period_s(self) -> float: ...

    async def look(self) -> Sequence[str] | None:
        """Addresses of workers, none twice; None when nothing is new. Raises OSError, ConfigurationError."""
        ...


@dataclass(slots=True)
class FileSource:
    """One address a line; what follows a # is for people."""

    path: Path
    period_s: float = FILE_POLL_S
    _seen: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        return f"--workers-file {self.path}"

    def check(self) -> None:
        """Read it once, as it is. Raises ConfigurationError."""
        try:
            _check_size(self.path.stat().st_size)
            parse_workers(self.path.read_text("utf-8"))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.name} cannot be used: {error.message}") from None
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(f"cannot read {self.name}: {why}; write one address a line") from None

    async def look(self) -> Sequence[str] | None:
        stat = await asyncio.to_thread(self.path.stat)
        seen = (stat.st_mtime_ns, stat.st_size)
        if seen == self._seen:
            return None
        _check_size(stat.st_size)
        self._seen = seen
        return parse_workers(await asyncio.to_thread(self.path.read_text, "utf-8"))


@dataclass(frozen=True, slots=True)
class DnsSource:
    """Every address that `host` has, at `port`."""

    host: str
    port: int
    resolve: Resolve = field(default_factory=lambda: resolve)
    period_s: float = DNS_POLL_S

    @property
    def name(self) -> str:
        return f"dns:{self.host}:{self.port}"

    async def look(self) -> Sequence[str] | None:
        return sorted({str(TcpAddress(host, self.port)) for host in await self.resolve(self.host, self.port)})


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise ConfigurationError(f"it has {num_bytes} bytes; the limit is {MAX_FILE_BYTES}")


def parse_workers(text: str) -> list[str]:
    """Raises ConfigurationError for a line that is no address."""
    words = (line.partition("#")[0].strip() for line in text.splitlines())
    named = dict.fromkeys(word for word in words if word)
    for word in named:
        parse_address(word)
    return list(named)


def parse_dns(word: str) -> DnsSource | None:
    """dns:NAME:PORT; None for what does not begin so. Raises ConfigurationError."""
    if not word.startswith("dns:"):
        return None
    address = parse_address(word.removeprefix("dns:"))
    if not isinstance(address, TcpAddress) or not address.port:
        raise ConfigurationError(f"--worker is {word!r}; write dns:NAME:PORT")
    return DnsSource(address.host, address.port)


async def resolve(host: str, port: int) -> list[str]:
    """In a thread, as the system does. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
    return [str(address[0]) for *_, address in found]


class Discovery:
    """What a source cannot say now stays as it was; who is named no more ends what it has, and goes."""

    def __init__(self, workers: BackendPool, named: Sequence[str], sources: Sequence[Source]) -> None:
        """`named` are members already, and stay."""
        self._workers = workers
        self._sources = sources
        self._membership = Membership()
        self._membership.replace(COMMAND_LINE, named)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source))
            await asyncio.Event().wait()

    async def _follow(self, source: Source) -> None:
        is_missed = False
        while True:
            try:
                addresses = await source.look()
                is_missed = False
                if addresses is not None:
                    self._apply(source.name, self._membership.replace(source.name, addresses))
            except Exception as error:  # noqa: BLE001  what a name or a file says is not ours to trust
                if not is_missed:
                    _log.warning(
                        "%s cannot be used, all stays as it is: %s",
                        source.name,
                        error,
                        exc_info=None if isinstance(error, EXPECTED) else error,
                    )
                is_missed = True
            await asyncio.sleep(source.period_s)

    def _apply(self, source: str, change: Change) -> None:
        for address in change.joined:
            _log.info("%s names a worker at %s", source, address)
            try:
                self._workers.add(address)
            except ConfigurationError as error:
                _log.warning("a worker is left out: %s", error.message)
        for address in change.left:
            _log.info("%s names the worker at %s no more", source, address)
            if address in self._workers:
                self._workers.drain(address)
