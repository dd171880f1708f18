"""A worker and the gateway's backend over a real socket, with a scripted engine behind it."""

import asyncio
import random
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from atomesh.clock import MonotonicClock
from atomesh.errors import InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.backends.atom import AtomBackend
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.dispatcher import Dispatcher
from atomesh.protocol.address import parse_address
from atomesh.protocol.frames import GatewayMessage, Submit, encode_message
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.sealed_channel import NONCE_BYTES
from atomesh.protocol.token_channel import TOKEN_PLANE, gateway_channel
from atomesh.testing.scripted_worker import (
    NUM_BLOCKS,
    PacedTokens,
    ScriptedWorker,
    scripted_engine,
    scripted_worker,
)

SECRET = b"s" * 32
PATIENCE_S = 10.0


@dataclass
class Mesh:
    scripted: ScriptedWorker
    registry: WorkerRegistry
    backend: AtomBackend
    dispatcher: Dispatcher
    tokens: PacedTokens


def request(request_id: str, prompt_len: int = 5, max_tokens: int = 4, n: int = 1) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=list(range(prompt_len)),
        sampling=SamplingSpec(seed=1, max_tokens=max_tokens),
        n=n,
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  what changes it is in another thread
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway(address: str, secret: bytes = SECRET) -> AsyncIterator[tuple[WorkerRegistry, AtomBackend]]:
    registry = WorkerRegistry(lambda _: None)
    backend = AtomBackend(address, secret, registry, MonotonicClock())
    task = asyncio.create_task(backend.run())
    try:
        yield registry, backend
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def mesh(address: str) -> AsyncIterator[Mesh]:
    tokens = PacedTokens()
    async with (
        scripted_worker(scripted_engine(tokens), address, SECRET) as scripted,
        gateway(scripted.address) as (registry, backend),
    ):
        dispatcher = Dispatcher("scripted", registry, {scripted.address: backend}, MonotonicClock())
        await until(lambda: bool(registry.snapshot().ready("scripted")))
        try:
            yield Mesh(scripted, registry, backend, dispatcher, tokens)
        finally:
            tokens.release()


@asynccontextmanager
async def paced(tokens: PacedTokens) -> AsyncIterator[None]:
    """One token at first, then as many as are allowed; no pace after the block."""
    tokens.pace()
    tokens.allow(1)
    try:
        yield
    finally:
        tokens.release()


async def collect(dispatcher: Dispatcher, wanted: GenerationRequest) -> list[TokenDelta]:
    return await collect_from(dispatcher.generate(wanted))


async def collect_from(steps: AsyncGenerator[list[TokenDelta], None]) -> list[TokenDelta]:
    return [delta async for deltas in steps for delta in deltas]


def tokens_of(deltas: list[TokenDelta], choice: int = 0) -> list[int]:
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


def run_in_mesh(address: str, scenario: Callable[[Mesh], Awaitable[None]]) -> None:
    async def main() -> None:
        async with mesh(address) as made:
            await scenario(made)
            await until(lambda: is_idle(made))
            made.scripted.engine.check_invariants()
            assert made.registry.snapshot().workers[0].in_flight == 0
            assert tokens_of(await collect(made.dispatcher, request("after"))) == [5, 6, 7, 8]

    asyncio.run(main())


def is_idle(made: Mesh) -> bool:
    load = made.scripted.engine.load()
    return load.running == 0 and load.waiting == 0 and load.free_blocks + load.cached_blocks >= NUM_BLOCKS


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/w.sock" if request.param == "unix" else "127.0.0.1:0"


def test_tokens_arrive_in_order_with_the_finish_last(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        deltas = await collect(made.dispatcher, request("r"))
        assert tokens_of(deltas) == [5, 6, 7, 8]
        assert {delta.request_id for delta in deltas} == {"r"}
        assert [delta.finish_reason for delta in deltas] == [None, None, None, "length"]
        assert deltas[0].cached_tokens == 0

    run_in_mesh(address, scenario)


def test_fifty_requests_at_once_do_not_mix(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        requests = [request(f"r{i}", prompt_len=i + 1, max_tokens=6) for i in range(50)]
        answers = await asyncio.gather(*(collect(made.dispatcher, one) for one in requests))
        assert [tokens_of(a) for a in answers] == [list(range(i + 1, i + 7)) for i in range(50)]

    run_in_mesh(address, scenario)


def test_all_choices_of_one_request_end(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        deltas = await collect(made.dispatcher, request("r", n=3, max_tokens=2))
        assert [tokens_of(deltas, choice) for choice in range(3)] == [[5, 6], [6, 7], [7, 8]]

    run_in_mesh(address, scenario)


def test_what_can_never_fit_is_refused_with_the_engines_own_error(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        with pytest.raises(InvalidRequestError, match="512"):
            await collect(made.dispatcher, request("r", prompt_len=600))

    run_in_mesh(address, scenario)


def test_closing_the_generator_frees_the_blocks_within_a_step(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        made.tokens.pace()
        made.tokens.allow(2)
        steps = made.dispatcher.generate(request("r", prompt_len=40, max_tokens=100))
        assert [delta.token_ids for delta in await anext(steps)] == [[40]]
        assert [delta.token_ids for delta in await anext(steps)] == [[41]]
        await steps.aclose()
        await asyncio.sleep(0.05)  # the abort crosses the socket while the engine is held in its third step
        made.tokens.allow(1)
        await until(lambda: is_idle(made))
        assert made.scripted.engine.load().steps <= 3
        made.tokens.release()

    run_in_mesh(address, scenario)


def test_a_gateway_that_goes_takes_only_its_own_requests_along(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        made.tokens.pace()
        async with gateway(made.scripted.address) as (registry, other):
            await until(lambda: bool(registry.snapshot().ready("scripted")))
            plane = made.scripted.worker.token_plane
            elsewhere = Dispatcher("scripted", registry, {made.scripted.address: other}, MonotonicClock())
            theirs = elsewhere.generate(request("r", prompt_len=30, max_tokens=400))
            ours = asyncio.create_task(collect(made.dispatcher, request("r", prompt_len=20, max_tokens=5)))
            made.tokens.allow(3)
            await anext(theirs)
        await until(lambda: plane.num_gateways == 1)
        made.tokens.release()
        with pytest.raises(ServiceUnavailableError, match="lost"):
            await collect_from(theirs)
        assert tokens_of(await ours) == [20, 21, 22, 23, 24]
        await until(lambda: is_idle(made))
        assert made.scripted.engine.load().generation_tokens < 20

    run_in_mesh(address, scenario)


def test_five_hundred_aborts_at_random_moments_leave_nothing_behind(address: str) -> None:
    rng = random.Random(11)

    async def abandon(made: Mesh, number: int) -> None:
        wanted = request(f"r{number}", rng.randint(1, 120), max_tokens=300, n=rng.choice([1, 1, 3]))
        steps = made.dispatcher.generate(wanted)
        for _ in range(rng.randint(0, 4)):
            await anext(steps)
        await steps.aclose()

    async def scenario(made: Mesh) -> None:
        for batch in range(10):
            await asyncio.gather(*(abandon(made, 50 * batch + i) for i in range(50)))

    run_in_mesh(address, scenario)


def test_the_prefix_cache_is_reset_on_demand(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        first = await collect(made.dispatcher, request("a", prompt_len=40))
        again = await collect(made.dispatcher, request("b", prompt_len=40))
        made.backend.reset_prefix_cache()
        reset = await collect(made.dispatcher, request("c", prompt_len=40))
        assert [deltas[0].cached_tokens for deltas in (first, again, reset)] == [0, 32, 0]

    run_in_mesh(address, scenario)


def test_a_worker_that_goes_ends_its_requests_and_is_used_again_when_it_is_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/w.sock"

    async def main() -> None:
        tokens = PacedTokens()
        async with gateway(address) as (registry, backend):
            dispatcher = Dispatcher("scripted", registry, {address: backend}, MonotonicClock())
            with pytest.raises(ServiceUnavailableError):
                dispatcher.describe()
            async with scripted_worker(scripted_engine(tokens), address, SECRET) as scripted, paced(tokens):
                await until(lambda: bool(registry.snapshot().ready("scripted")))
                begun, unbegun = dispatcher.generate(request("r")), dispatcher.generate(request("s"))
                assert tokens_of(await anext(begun)) == [5]
                waiting = asyncio.ensure_future(anext(unbegun))
                await until(lambda: registry.snapshot().workers[0].in_flight == 2)
                scripted.worker.stop()
                with pytest.raises(ServiceUnavailableError, match="lost"):
                    await anext(begun)
                with pytest.raises(ServiceUnavailableError, match="lost"):
                    await waiting
                with pytest.raises(ServiceUnavailableError):
                    dispatcher.describe()
            async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET):
                await until(lambda: bool(registry.snapshot().ready("scripted")))
                assert tokens_of(await collect(dispatcher, request("r"))) == [5, 6, 7, 8]

    asyncio.run(main())


def test_a_worker_told_to_stop_finishes_what_runs_and_refuses_what_is_new(address: str) -> None:
    async def main() -> None:
        tokens = PacedTokens()
        async with (
            scripted_worker(scripted_engine(tokens), address, SECRET, drain_s=60.0) as scripted,
            gateway(scripted.address) as (registry, backend),
            paced(tokens),
        ):
            dispatcher = Dispatcher("scripted", registry, {scripted.address: backend}, MonotonicClock())
            await until(lambda: bool(registry.snapshot().ready("scripted")))
            steps = dispatcher.generate(request("r"))
            begun = await anext(steps)
            scripted.worker.stop()
            refused = asyncio.create_task(collect(dispatcher, request("s")))
            await until(lambda: registry.snapshot().workers[0].dispatched == 2)
            tokens.allow(3)
            assert tokens_of([*begun, *await collect_from(steps)]) == [5, 6, 7, 8]
            with pytest.raises(ServiceUnavailableError, match="shutting down"):
                await refused

    asyncio.run(main())


def test_a_gateway_with_another_secret_is_refused_and_counted(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        async with gateway(made.scripted.address, secret=b"x" * 32) as (registry, _):
            refusals = made.scripted.worker.token_plane.refusals
            await until(lambda: refusals["secret"] >= 1)
            assert registry.snapshot().workers[0].state == "connecting"

    run_in_mesh(address, scenario)


async def talk(address: str, *payloads: bytes) -> bytes:
    """Send `payloads`, close our half, and return all that the worker says until it hangs up."""
    parsed = parse_address(address)
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(parsed.path)
    else:
        reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
    async with asyncio.timeout(PATIENCE_S):
        try:
            for payload in payloads:
                writer.write(payload)
            await writer.drain()
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


GREETING = TOKEN_PLANE.magic + b"n" * NONCE_BYTES
HOSTILE = {
    "not a greeting": b"GET / HTTP/1.1\r\n\r\n" + b"x" * 2000,
    "announces 4 GiB": GREETING + struct.pack("<I", 2**32 - 1) + b"x" * 100,
    "announces one byte": GREETING + struct.pack("<I", 1) + b"x" * 17,
    "a request before the proof": GREETING + struct.pack("<I", 0) + encode_message(Submit(request("r"))),
    "a wrong proof": GREETING + struct.pack("<I", 0) + b"x" * 16,
    "many empty frames": GREETING + bytes(6000),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_peer_is_refused_and_counted(address: str, payload: bytes) -> None:
    async def scenario(made: Mesh) -> None:
        said = await talk(made.scripted.address, payload)
        assert b"hello" not in said
        await until(lambda: made.scripted.worker.token_plane.refusals.total() == 1)

    run_in_mesh(address, scenario)


class Spoken:
    """A gateway's connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.channel = gateway_channel(SECRET, b"n" * NONCE_BYTES)
        self.heard: list[object] = []

    def frame(self, message: GatewayMessage) -> bytes:
        return self.channel.seal(encode_message(message))

    async def receive(self) -> None:
        self.heard += self.channel.receive(await self.reader.read(10_000))

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def handshake(address: str) -> Spoken:
    parsed = parse_address(address)
    if address.startswith("unix:"):
        spoken = Spoken(*await asyncio.open_unix_connection(parsed.path))
    else:
        spoken = Spoken(*await asyncio.open_connection(parsed.host, parsed.port))
    spoken.writer.write(spoken.channel.greeting)
    await spoken.receive()
    spoken.writer.write(spoken.channel.proof())
    while not spoken.heard:
        await spoken.receive()
    return spoken


def test_fuzzed_bytes_after_the_handshake_hurt_nobody_else(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        rng = random.Random(7)
        for _ in range(60):
            spoken = await handshake(made.scripted.address)
            good = spoken.frame(Submit(request("r", max_tokens=2)))
            mangled = bytearray(good + spoken.frame(Submit(request("s", max_tokens=2))))
            for _ in range(rng.randint(1, 6)):
                mangled[rng.randrange(len(mangled))] = rng.randrange(256)
            cut = rng.randint(1, len(mangled))
            spoken.writer.write(bytes(mangled[:cut]))
            await spoken.leave()
        await until(lambda: is_idle(made))

    run_in_mesh(address, scenario)


@pytest.mark.parametrize("fault", ["mac", "message"])
def test_meddling_after_the_handshake_ends_the_connection_and_is_counted(address: str, fault: str) -> None:
    async def scenario(made: Mesh) -> None:
        spoken = await handshake(made.scripted.address)
        what = encode_message(Submit(request("r", max_tokens=1))) if fault == "mac" else b"\xc1"
        spoken.writer.write(spoken.channel.seal(what) * 2)
        async with asyncio.timeout(PATIENCE_S):
            while await spoken.reader.read(10_000):
                pass
        assert made.scripted.worker.token_plane.refusals == {fault: 1}
        await spoken.leave()

    run_in_mesh(address, scenario)


def test_a_frame_cut_short_by_the_end_of_the_connection_is_no_request(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        spoken = await handshake(made.scripted.address)
        spoken.writer.write(spoken.frame(Submit(request("r")))[:-1])
        await spoken.leave()
        assert tokens_of(await collect(made.dispatcher, request("s"))) == [5, 6, 7, 8]
        assert made.scripted.engine.load().prompt_tokens == 5

    run_in_mesh(address, scenario)


def test_a_duplicate_id_on_one_connection_is_an_error_of_the_second_alone(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        made.tokens.pace()
        spoken = await handshake(made.scripted.address)
        for _ in range(2):
            spoken.writer.write(spoken.frame(Submit(request("r", max_tokens=1))))
        made.tokens.release()

        def kinds() -> list[str]:
            deltas = [delta for message in spoken.heard for delta in getattr(message, "deltas", [])]
            return sorted(str(delta.finish_reason) for delta in deltas)

        async with asyncio.timeout(PATIENCE_S):
            while len(kinds()) < 2:
                await spoken.receive()
        assert kinds() == ["error", "length"]
        await spoken.leave()

    run_in_mesh(address, scenario)


class Relay:
    """One who passes on what gateway and worker say to each other, and then adds a frame of its own."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self.to_worker: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parsed = parse_address(self._worker)
        if self._worker.startswith("unix:"):
            others = await asyncio.open_unix_connection(parsed.path)
        else:
            others = await asyncio.open_connection(parsed.host, parsed.port)
        self.to_worker = others[1]
        await asyncio.gather(self._pass(reader, others[1]), self._pass(others[0], writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except ConnectionError:
            return
        finally:
            writer.close()


def test_a_relay_of_the_handshake_is_obeyed_in_nothing(address: str, tmp_path: Path) -> None:
    async def scenario(made: Mesh) -> None:
        relay = Relay(made.scripted.address)
        server = await asyncio.start_unix_server(relay.serve, f"{tmp_path}/relay")
        async with gateway(f"unix:{tmp_path}/relay") as (registry, _):
            await until(lambda: bool(registry.snapshot().ready("scripted")))
            assert relay.to_worker is not None
            body = encode_message(Submit(request("stolen")))
            relay.to_worker.write(struct.pack("<I", len(body)) + bytes(16) + body)
            refusals = made.scripted.worker.token_plane.refusals
            await until(lambda: refusals["mac"] == 1)
            assert made.scripted.engine.load().prompt_tokens == 0
        server.close()
        await server.wait_closed()

    run_in_mesh(address, scenario)


def test_a_gateway_gets_past_three_hundred_who_say_nothing(address: str) -> None:
    async def scenario(made: Mesh) -> None:
        parsed = parse_address(made.scripted.address)
        is_unix = made.scripted.address.startswith("unix:")
        strangers = [
            await (
                asyncio.open_unix_connection(parsed.path)
                if is_unix
                else asyncio.open_connection(parsed.host, parsed.port)
            )
            for _ in range(300)
        ]
        async with gateway(made.scripted.address) as (registry, _), asyncio.timeout(5.0):
            await until(lambda: bool(registry.snapshot().ready("scripted")))
        assert made.scripted.worker.token_plane.refusals["crowd"] >= 300 - 128
        for _, writer in strangers:
            writer.close()

    run_in_mesh(address, scenario)
