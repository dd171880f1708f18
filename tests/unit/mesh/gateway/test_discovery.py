import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atomesh.errors import ConfigurationError
from atomesh.mesh.gateway.discovery import Discovery, DnsSource, FileSource, parse_dns, parse_workers


class Pool(dict[str, bool]):
    """Whether each member is wanted; one that is not ends what it has."""

    def add(self, address: str) -> None:
        self[address] = True

    def drain(self, address: str) -> None:
        self[address] = False


class Told:
    """A source that says one thing after another, then nothing new."""

    name = "told"
    period_s = 0.0

    def __init__(self, *says: Sequence[str] | Exception) -> None:
        self._says = list(says)
        self.is_through = asyncio.Event()

    async def look(self) -> Sequence[str] | None:
        if not self._says:
            self.is_through.set()
            return None
        said = self._says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def test_who_is_named_joins_and_who_is_no_more_drains(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        pool: Any = Pool({"x:1": True})
        source = Told(["a:1", "x:1"], OSError("gone"), ConfigurationError("no address"), ["b:1"])
        running = asyncio.create_task(Discovery(pool, ["x:1"], [source]).run())
        await asyncio.wait_for(source.is_through.wait(), 5.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert pool == {"x:1": True, "a:1": False, "b:1": True}

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records if record.levelname == "INFO"] == [
        "told names a worker at a:1",
        "told names a worker at b:1",
        "told names the worker at a:1 no more",
    ]


def test_a_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "workers"
        source = FileSource(path)
        with pytest.raises(FileNotFoundError):
            await source.look()
        path.write_text("# ours\nhost:1  # the first\n\nunix:/w\nhost:1\n")
        assert await source.look() == ["host:1", "unix:/w"]
        assert await source.look() is None
        path.write_text("host:2\n")
        os.utime(path, ns=(1, 1))
        assert await source.look() == ["host:2"]

    asyncio.run(scenario())


def test_a_bad_line_is_named() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        parse_workers("host:1\nnowhere\n")


def test_all_addresses_of_a_name() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("workers.local", 8100)
        return ["10.0.0.2", "::1", "10.0.0.1", "10.0.0.2"]

    source = DnsSource("workers.local", 8100, resolve)
    assert asyncio.run(source.look()) == ["10.0.0.1:8100", "10.0.0.2:8100", "[::1]:8100"]


def test_the_systems_resolver_is_asked() -> None:
    source = parse_dns("dns:localhost:8100")
    assert source is not None
    assert {"127.0.0.1:8100", "[::1]:8100"} & set(asyncio.run(source.look()) or ())


@pytest.mark.parametrize("word", ["dns:name", "dns:name:0", "dns:unix:/x", "dns::1"])
def test_what_is_no_name_and_port(word: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_dns(word)


def test_an_address_is_no_name() -> None:
    assert parse_dns("host:1") is None


def test_what_a_source_may_not_raise_or_say_leaves_the_others_as_they_are() -> None:
    class Choosy(Pool):
        def add(self, address: str) -> None:
            if address.startswith("a.."):
                raise ConfigurationError("no address")
            super().add(address)

    async def scenario() -> None:
        pool: Any = Choosy()
        bad = Told(UnicodeError("label too long"), RecursionError("deep"), ["a..b:1", "c:1"])
        good = Told(["b:1"])
        good.name = "another"
        running = asyncio.create_task(Discovery(pool, [], [bad, good]).run())
        for source in (bad, good):
            await asyncio.wait_for(source.is_through.wait(), 5.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert pool == {"b:1": True, "c:1": True}

    asyncio.run(scenario())
