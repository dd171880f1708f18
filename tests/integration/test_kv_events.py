"""KV events from a worker's engine into a gateway's index, over a real token plane."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.engine import Engine
from atomesh.mesh.backends.atom import AtomBackend
from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.fault_points import FaultPoints
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.scripted_worker import BLOCK_SIZE, PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
PATIENCE_S = 5.0  # FAULTS.md E4
EMPTY_S = 2.0  # FAULTS.md E3
HASHER = BlockHasher(b"scripted", "scripted", BLOCK_SIZE)
PROMPT = list(range(3 * BLOCK_SIZE))


@dataclass
class Gateway:
    knowledge: Knowledge
    backend: AtomBackend

    async def ask(self, prompt: list[int], salt: str = "", max_tokens: int = 4) -> None:
        sampling = SamplingSpec(seed=1, max_tokens=max_tokens)
        request = GenerationRequest(
            request_id=f"r{id(prompt)}", prompt_token_ids=prompt, sampling=sampling, cache_salt=salt
        )
        stream = self.backend.submit(request, None)
        while await stream.next() is not None:
            pass
        stream.release()

    def match(self, hashes: list[BlockHash]) -> dict[str, MatchedBlocks]:
        return dict(self.knowledge.index.match(hashes, 0.0))

    def agrees_with(self, engine: Engine, incarnation: str = "0" * 16) -> bool:
        exact = self.knowledge.index.exact
        return incarnation in exact and exact.digest(incarnation) == digest_of(engine)


def digest_of(engine: Engine) -> int:
    """Reads what only the engine's thread may change."""
    return engine._scheduler.journal._digest


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  what changes it is in another thread
            await asyncio.sleep(0.005)


@asynccontextmanager
async def gateway(address: str) -> AsyncIterator[Gateway]:
    knowledge, registry = Knowledge(), WorkerRegistry(lambda _: None)
    backend = AtomBackend(address, SECRET, registry, MonotonicClock(), knowledge)
    task = asyncio.create_task(backend.run())
    try:
        await until(lambda: bool(registry.snapshot().ready("scripted")))
        yield Gateway(knowledge, backend)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/w"


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_gateways_know_where_a_prompt_lies_whoever_sent_it(address: str) -> None:
    engine = scripted_engine(PacedTokens())

    async def scenario() -> None:
        async with scripted_worker(engine, address, SECRET), gateway(address) as one, gateway(address) as two:
            await one.ask(PROMPT, max_tokens=BLOCK_SIZE + 1)
            await until(lambda: one.agrees_with(engine) and two.agrees_with(engine))
            answered = [*PROMPT, *(len(PROMPT) + index for index in range(BLOCK_SIZE))]

            assert one.match(HASHER.chain(answered)) == {"0" * 16: MatchedBlocks(4)}
            assert two.match(HASHER.chain(PROMPT)) == {"0" * 16: MatchedBlocks(3)}
            assert two.match(HASHER.chain(PROMPT, salt="b")) == {}

    run(scenario)


def test_what_one_tenant_sent_is_not_there_for_another(address: str) -> None:
    engine = scripted_engine(PacedTokens())

    async def scenario() -> None:
        async with scripted_worker(engine, address, SECRET), gateway(address) as one:
            await one.ask(PROMPT, salt="a")
            await until(lambda: one.agrees_with(engine))

            assert one.match(HASHER.chain(PROMPT, salt="a")) == {"0" * 16: MatchedBlocks(3)}
            assert one.match(HASHER.chain(PROMPT, salt="b")) == {}
            assert one.match(HASHER.chain(PROMPT)) == {}

    run(scenario)


def test_a_reset_cache_is_known_to_be_empty_though_nothing_runs(address: str) -> None:
    engine = scripted_engine(PacedTokens())

    async def scenario() -> None:
        async with scripted_worker(engine, address, SECRET), gateway(address) as one:
            await one.ask(PROMPT)
            await until(lambda: bool(one.match(HASHER.chain(PROMPT))))
            one.backend.reset_prefix_cache()
            async with asyncio.timeout(EMPTY_S):
                await until(lambda: one.match(HASHER.chain(PROMPT)) == {})
            assert one.agrees_with(engine)

    run(scenario)


def test_a_gateway_that_comes_later_is_told_what_was_before(address: str) -> None:
    engine = scripted_engine(PacedTokens())

    async def scenario() -> None:
        async with scripted_worker(engine, address, SECRET):
            async with gateway(address) as first:
                for start in range(0, 900, 50):
                    await first.ask(list(range(start, start + 3 * BLOCK_SIZE)))
            async with gateway(address) as second:
                await until(lambda: second.agrees_with(engine))
                assert digest_of(engine) != 0
                await second.ask(PROMPT)
                await until(lambda: second.agrees_with(engine))
                assert second.match(HASHER.chain(PROMPT)) == {"0" * 16: MatchedBlocks(3)}

    run(scenario)


def test_lost_batches_are_made_good(address: str) -> None:
    engine, faults = scripted_engine(PacedTokens()), FaultPoints()

    async def scenario() -> None:
        async with scripted_worker(engine, address, SECRET, faults=faults), gateway(address) as one:
            await one.ask(PROMPT)
            faults.arm("kv_drop_events", 2)
            await one.ask([*PROMPT, *range(500, 500 + 2 * BLOCK_SIZE)])
            await one.ask(list(range(300, 340)))
            assert faults.take("kv_drop_events") is None
            await until(lambda: one.agrees_with(engine))

            assert one.match(HASHER.chain(list(range(300, 340)))) == {"0" * 16: MatchedBlocks(2)}

    run(scenario)


def test_a_worker_that_begins_another_life_holds_nothing(address: str) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as rest:
            async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET):
                one = await rest.enter_async_context(gateway(address))
                await one.ask(PROMPT)
                await until(lambda: bool(one.match(HASHER.chain(PROMPT))))
            engine = scripted_engine(PacedTokens())
            async with asyncio.timeout(EMPTY_S):
                await rest.enter_async_context(scripted_worker(engine, address, SECRET, incarnation="1" * 16))
                await until(lambda: one.match(HASHER.chain(PROMPT)) == {})
                await until(lambda: one.agrees_with(engine, "1" * 16))
            assert one.match(HASHER.chain(PROMPT)) == {}
            await one.ask(PROMPT)
            await until(lambda: bool(one.match(HASHER.chain(PROMPT))))

            assert one.match(HASHER.chain(PROMPT)) == {"1" * 16: MatchedBlocks(3)}

    run(scenario)


def test_steps_are_measured_for_the_cost_model(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    async def scenario() -> None:
        async with scripted_worker(scripted_engine(PacedTokens()), address, SECRET), gateway(address) as one:
            monkeypatch.setattr(
                one.knowledge.costs, "observe_step", lambda incarnation, sample: seen.append(sample)
            )
            await one.ask(PROMPT)

    run(scenario)
    assert [(one.prefill_tokens, one.prefill_quadratic, one.context_tokens, one.batch) for one in seen] == [
        (48, 48**2, 0, 0),
        (0, 0, 49, 1),
        (0, 0, 50, 1),
        (0, 0, 51, 1),
    ]
    assert all(one.seconds > 0 for one in seen)
