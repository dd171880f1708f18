"""What an operator asks of a worker through a gateway: its role, its books, its faults."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from atomesh.clock import MonotonicClock
from atomesh.engine.token_plane import Identity
from atomesh.engine.worker import Worker, WorkerOptions
from atomesh.protocol.address import parse_address
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.frames import (
    GatewayMessage,
    Heartbeat,
    Hello,
    Inspect,
    Inspected,
    SetFault,
    SetRole,
    WorkerMessage,
    encode_message,
)
from atomesh.protocol.sealed_channel import NONCE_BYTES
from atomesh.protocol.token_channel import gateway_channel
from atomesh.protocol.worker import PRESETS, RoleWeights, WorkerDescription
from atomesh.testing.scripted_worker import NUM_BLOCKS, PacedTokens, scripted_engine

SECRET = b"s" * 32
PATIENCE_S = 10.0


class Gateway:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._channel = gateway_channel(SECRET, b"n" * NONCE_BYTES)
        self._heard: list[WorkerMessage] = []

    def say(self, message: GatewayMessage) -> None:
        self._writer.write(self._channel.seal(encode_message(message)))

    async def hear(self) -> WorkerMessage:
        async with asyncio.timeout(PATIENCE_S):
            while not self._heard:
                await self._receive()
        return self._heard.pop(0)

    async def _receive(self) -> None:
        self._heard += self._channel.receive(await self._reader.read(10_000))

    async def greet(self) -> Hello:
        self._writer.write(self._channel.greeting)
        while not self._channel.is_keyed:
            await self._receive()
        self._writer.write(self._channel.proof())
        hello = await self.hear()
        assert isinstance(hello, Hello)
        return hello

    async def inspect(self) -> Inspected:
        """Also: all that was said before has been carried out."""
        self.say(Inspect(1))
        while not isinstance(heard := await self.hear(), Inspected):
            pass
        return heard

    def leave(self) -> None:
        self._writer.close()


Connect = Callable[[], Awaitable[Gateway]]


def run_with_worker(
    directory: Path, scenario: Callable[[Connect], Awaitable[None]], faults: FaultPoints | None = None
) -> None:
    address = f"unix:{directory}/w.sock"
    engine = scripted_engine(PacedTokens())
    description = WorkerDescription(
        worker_id="w", incarnation="0" * 16, pid=0, role="unified", model=engine.description
    )
    options = WorkerOptions(Identity(SECRET, description), parse_address(address), 0.0, faults or NoFaults())

    async def connect() -> Gateway:
        return Gateway(*await asyncio.open_unix_connection(f"{directory}/w.sock"))

    async def main() -> None:
        worker = Worker(engine, options, MonotonicClock())
        ready = asyncio.Event()
        task = asyncio.create_task(worker.run(lambda _: ready.set()))
        await ready.wait()
        try:
            await scenario(connect)
        finally:
            worker.stop()
            await task

    asyncio.run(main())


def test_a_role_that_was_set_is_told_to_the_next_gateway(tmp_path: Path) -> None:
    async def scenario(connect: Connect) -> None:
        first = await connect()
        assert (await first.greet()).worker.role == "unified"
        first.say(SetRole(RoleWeights(prefill=0.2, decode=0.9)))
        await first.inspect()
        first.leave()
        second = await connect()
        assert (await second.greet()).worker.role == "decode"
        second.say(SetRole(PRESETS["prefill"]))
        await second.inspect()
        second.leave()
        third = await connect()
        assert (await third.greet()).worker.role == "prefill"
        third.say(SetRole(PRESETS["parked"]))
        await third.inspect()
        third.leave()
        fourth = await connect()
        assert (await fourth.greet()).worker.role == "parked"
        fourth.leave()

    run_with_worker(tmp_path, scenario)


def test_the_books_are_told(tmp_path: Path) -> None:
    async def scenario(connect: Connect) -> None:
        gateway = await connect()
        await gateway.greet()
        books = await gateway.inspect()
        assert books.total == NUM_BLOCKS
        assert books.states == {"free": NUM_BLOCKS, "cached": 0, "held": 0, "reserved": 0, "quarantined": 0}
        assert books.owners == {}
        gateway.leave()

    run_with_worker(tmp_path, scenario)


def test_a_fault_is_armed_where_faults_are_enabled(tmp_path: Path) -> None:
    faults = FaultPoints()

    async def scenario(connect: Connect) -> None:
        gateway = await connect()
        await gateway.greet()
        gateway.say(SetFault("step_delay", 2, 0.5))
        gateway.say(SetFault("no such point", 1))
        await gateway.inspect()
        gateway.leave()

    run_with_worker(tmp_path, scenario, faults)
    assert [faults.take("step_delay") for _ in range(3)] == [0.5, 0.5, None]


def test_elsewhere_a_fault_changes_nothing(tmp_path: Path) -> None:
    async def scenario(connect: Connect) -> None:
        gateway = await connect()
        await gateway.greet()
        gateway.say(SetFault("step_delay", 2, 0.5))
        assert (await gateway.inspect()).total == NUM_BLOCKS
        gateway.leave()

    run_with_worker(tmp_path, scenario)


def test_whoever_asks_without_pause_still_hears_that_the_worker_lives(tmp_path: Path) -> None:
    async def scenario(connect: Connect) -> None:
        gateway = await connect()
        await gateway.greet()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                gateway.say(Inspect(1))
                while not isinstance(heard := await gateway.hear(), Inspected | Heartbeat):
                    pass
                if isinstance(heard, Heartbeat):
                    break
        gateway.leave()

    run_with_worker(tmp_path, scenario)
