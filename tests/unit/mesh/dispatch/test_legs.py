import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from atomesh.errors import EngineError
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch import legs as legs_module
from atomesh.mesh.dispatch.legs import Legs
from atomesh.mesh.request_flow.steps import Arrived, LegFailed, SendLeg
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, PrefillLeg, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.ticket import Ticket
from atomesh.testing.mesh_snapshots import worker_description, worker_snapshot
from atomesh.testing.scripted_backend import ScriptedBackend

REQUEST = GenerationRequest(
    request_id="r", prompt_token_ids=[1] * 30, sampling=SamplingSpec(seed=0, max_tokens=4), n=2
)
TICKET = Ticket(
    ticket_id=b"t" * 16, gateway="g", serial=1, request_id="r", prefill="p", decode="d", ttl_s=1.0
)
PREFILL = SendLeg(worker_snapshot("p"), REQUEST, PrefillLeg(ticket=TICKET, decode_address="unix:/d"))
DECODE = SendLeg(worker_snapshot("d"), REQUEST, DecodeLeg(outputs={0: [5], 1: [6]}, ticket=TICKET))
WHOLE = SendLeg(worker_snapshot("p"), REQUEST, None)


class World:
    def __init__(self) -> None:
        self.registry = WorkerRegistry(lambda _: None)
        self.backends = {"p": ScriptedBackend(), "d": ScriptedBackend()}
        for name in self.backends:
            self.registry.expect(name)
            self.registry.connected(name, worker_description(name), now=0.0)
        self.legs = Legs(self.registry, self.backends)

    def work(self, name: str) -> tuple[int, int, int]:
        [worker] = [one for one in self.registry.snapshot().workers if one.address == name]
        return worker.in_flight, worker.prefill_tokens, worker.sequences


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0):
            await scenario(World())

    asyncio.run(main())


def delta(token: int = 7, **fields: object) -> TokenDelta:
    return TokenDelta(request_id="r", token_ids=[token], **fields)


def test_a_leg_counts_from_its_dispatch_and_its_prompt_until_the_first_token() -> None:
    async def scenario(world: World) -> None:
        world.legs.send(WHOLE)
        assert world.work("p") == (1, 30, 2)
        world.backends["p"].streams[0].push([delta()])
        assert await world.legs.next(WHOLE, None) == Arrived([delta()])
        assert world.work("p") == (1, 0, 2)
        world.legs.release(WHOLE)
        world.legs.release(WHOLE)
        assert world.work("p") == (0, 0, 0)
        assert world.backends["p"].left == [False]

    run(scenario)


def test_a_decode_leg_counts_before_it_is_sent() -> None:
    async def scenario(world: World) -> None:
        world.legs.expect(DECODE.worker, "r", 2)
        world.legs.send(PREFILL)
        assert (world.work("p"), world.work("d")) == ((1, 30, 2), (1, 0, 2))
        world.legs.send(DECODE)
        assert world.work("d") == (1, 0, 2)
        assert [one.dispatched for one in world.registry.snapshot().workers] == [1, 1]
        world.legs.close()
        assert (world.work("p"), world.work("d")) == ((0, 0, 0), (0, 0, 0))
        assert world.backends["p"].left == world.backends["d"].left == [True]
        assert world.backends["d"].called_off == []

    run(scenario)


@pytest.mark.parametrize(
    ("end", "called_off"), [("close", ["r"]), ("abort", ["r"]), ("fail", ["r"]), ("release", [])]
)
def test_decode_is_told_of_a_leg_that_will_not_come_unless_prefill_does_it(
    end: str, called_off: list[str]
) -> None:
    async def scenario(world: World) -> None:
        world.legs.expect(DECODE.worker, "r", 2)
        world.legs.send(PREFILL)
        if end == "close":
            world.legs.close()
        elif end == "fail":
            world.backends["p"].streams[0].fail(EngineError("no"))
            await world.legs.next(PREFILL, None)
        else:
            getattr(world.legs, end)(PREFILL)
        assert world.work("d") == (0, 0, 0)
        world.legs.close()
        assert world.backends["d"].called_off == called_off
        assert world.backends["d"].left == []

    run(scenario)


@pytest.mark.parametrize("error", [EngineError("no"), WorkerLostError()])
def test_a_failed_leg_is_over(error: EngineError | WorkerLostError) -> None:
    async def scenario(world: World) -> None:
        world.legs.send(WHOLE)
        world.backends["p"].streams[0].fail(error)
        is_lost = isinstance(error, WorkerLostError)
        assert await world.legs.next(WHOLE, None) == LegFailed(WHOLE, error, is_lost, is_suspect=not is_lost)
        assert world.work("p") == (0, 0, 0)
        world.legs.close()
        assert world.backends["p"].left == [False]

    run(scenario)


def test_an_answer_that_ends_too_early_is_a_failure() -> None:
    async def scenario(world: World) -> None:
        world.legs.send(WHOLE)
        world.backends["p"].streams[0].push([delta(choice=c, finish_reason="stop") for c in (0, 1)])
        assert isinstance(await world.legs.next(WHOLE, None), Arrived)
        failed = await world.legs.next(WHOLE, None)
        assert isinstance(failed, LegFailed)
        assert type(failed.error) is EngineError

    run(scenario)


def test_a_worker_that_left_the_mesh_is_a_lost_one() -> None:
    async def scenario(world: World) -> None:
        del world.backends["d"]
        world.registry.forget("d")
        world.legs.send(DECODE)
        failed = await world.legs.next(DECODE, None)
        assert isinstance(failed, LegFailed)
        assert failed.is_lost
        world.legs.close()

    run(scenario)


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_worker_that_was_restarted_between_the_legs_is_a_lost_one(is_expected: bool) -> None:
    """The one that answers at its address now knows nothing of the ticket."""

    async def scenario(world: World) -> None:
        if is_expected:
            world.legs.expect(DECODE.worker, "r", 2)
        another = replace(worker_description("d"), incarnation="another life")
        world.registry.lost("d")
        world.registry.connected("d", another, now=1.0)
        world.legs.send(DECODE)
        failed = await world.legs.next(DECODE, None)
        assert isinstance(failed, LegFailed)
        assert (failed.leg, failed.is_lost) == (DECODE, True)
        world.legs.close()
        assert world.backends["d"].streams == []
        assert world.backends["d"].called_off == []
        assert world.work("d") == (0, 0, 0)

    run(scenario)


def test_a_second_expectation_ends_the_first() -> None:
    async def scenario(world: World) -> None:
        world.legs.expect(DECODE.worker, "r", 2)
        world.legs.expect(DECODE.worker, "r~2", 1)
        assert world.work("d") == (1, 0, 1)
        world.legs.close()
        assert world.work("d") == (0, 0, 0)
        assert world.backends["d"].called_off == ["r", "r~2"]

    run(scenario)


def test_decode_is_not_waited_for_once_the_source_of_its_kv_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legs_module, "GRACE_S", 0.01)

    async def scenario(world: World) -> None:
        world.legs.send(PREFILL)
        source = world.backends["p"].streams[0]
        source.push([delta(), delta(choice=1)])
        assert isinstance(await world.legs.next(PREFILL, None), Arrived)
        world.legs.send(DECODE)
        waiting = asyncio.ensure_future(world.legs.next(DECODE, PREFILL))
        await asyncio.sleep(0)
        source.fail(WorkerLostError())
        failed = await waiting
        assert isinstance(failed, LegFailed)
        assert (failed.leg, failed.is_lost) == (PREFILL, True)
        assert (world.work("p"), world.work("d")) == ((0, 0, 0), (1, 0, 2))
        world.legs.abort(DECODE)
        assert world.backends["d"].left == [True]

    run(scenario)


def test_but_what_decode_says_in_time_counts() -> None:
    async def scenario(world: World) -> None:
        world.legs.send(PREFILL)
        source = world.backends["p"].streams[0]
        source.push([delta(), delta(choice=1)])
        await world.legs.next(PREFILL, None)
        world.legs.send(DECODE)
        waiting = asyncio.ensure_future(world.legs.next(DECODE, PREFILL))
        await asyncio.sleep(0)
        source.fail(WorkerLostError())
        world.backends["d"].streams[0].push([delta(8)])
        assert await waiting == Arrived([delta(8)])
        world.backends["d"].streams[0].push([delta(9)])
        assert await world.legs.next(DECODE, None) == Arrived([delta(9)])
        world.legs.close()

    run(scenario)
