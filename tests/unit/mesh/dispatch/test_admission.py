"""The line in the event loop, and the service behind it, over a registry whose worker has two places."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace as replaced
from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.errors import (
    AuthenticationError,
    DeadlineExceededError,
    EngineError,
    RateLimitError,
    ServiceUnavailableError,
)
from atomesh.frontend.token_service import Carry
from atomesh.mesh.admission.admission import QueueRules
from atomesh.mesh.admission.cost import KV_POOL
from atomesh.mesh.admission.rate_limits import RateLimits
from atomesh.mesh.admission.tenant import CLASS_BAND, Tenant
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.admission import TARIFF_S, AdmissionGate, GateOptions
from atomesh.mesh.dispatch.admitted_service import AdmittedService
from atomesh.mesh.dispatch.visit import Caller
from atomesh.mesh.placement.costs import PRIOR_COSTS, Costs, StepCosts
from atomesh.protocol.generation import GenerationRequest, Timings, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport, ModelDescription
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.mesh_snapshots import MODEL, worker_description

PLACES = 2
A = Tenant("a")
KV_TOKENS = 4096


class Workers:
    """A TokenService that shows its work in the registry as a dispatcher does. Each request gives one token,
    then waits for `finish`, and gives another."""

    def __init__(self, registry: WorkerRegistry) -> None:
        self.started: list[GenerationRequest] = []
        self.most_at_once = 0
        self.error: Exception | None = None
        self._registry = registry
        self._gates: dict[str, asyncio.Event] = {}
        self._running = 0

    def describe(self) -> ModelDescription:
        return worker_description("w").model

    def load(self) -> LoadReport:
        return LoadReport(running=self._running)

    def loads(self) -> dict[str, LoadReport]:
        return {"w": self.load()}

    def finish(self, request_id: str) -> None:
        self._gates[request_id].set()

    async def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        self.started.append(request)
        if self.error is not None:
            raise self.error
        gate = self._gates[request.request_id] = asyncio.Event()
        work = self._registry.commit("w", prefill_tokens=0, sequences=request.n)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            yield [delta(request, cached_tokens=2, timings=Timings(0.5, 0.25))]
            await gate.wait()
            yield [delta(request, finish_reason="length")]
        finally:
            self._running -= 1
            work.end()


def delta(request: GenerationRequest, **fields: Any) -> TokenDelta:
    return TokenDelta(request_id=request.request_id, token_ids=[1], **fields)


class World:
    def __init__(self, places: int = PLACES, **options: Any) -> None:
        self.clock = ManualClock(100.0)
        self.registry = WorkerRegistry(lambda _: None)
        self.registry.expect("w")
        self.registry.connected("w", replace(worker_description("w"), max_num_seqs=places), self.clock.now())
        self.workers = Workers(self.registry)
        self.gate = AdmissionGate(MODEL, self.registry, self.clock, GateOptions(**options))
        self.tasks: dict[str, asyncio.Task[list[TokenDelta]]] = {}

    def service(self, tenant: Tenant, timeout_s: float | None = None) -> AdmittedService:
        now = self.clock.now()
        deadline_at = None if timeout_s is None else now + timeout_s
        caller = Caller(tenant, RateLimits(tenant, now), deadline_at)
        return AdmittedService(self.workers, self.gate, self.clock, caller)

    async def ask(self, name: str, tenant: Tenant = A, prompt: int = 10, **options: Any) -> None:
        """A request of that id, as far as it gets without anybody doing anything."""
        service = self.service(tenant, **options)
        self.tasks[name] = asyncio.create_task(collect(service, request(name, prompt)))
        await settle()

    async def finish(self, name: str) -> list[TokenDelta]:
        self.workers.finish(name)
        deltas = await self.tasks[name]
        await settle()
        return deltas

    @property
    def started(self) -> list[str]:
        return [one.request_id for one in self.workers.started]


def request(name: str, tokens: int = 10, **fields: Any) -> GenerationRequest:
    sampling = SamplingSpec(seed=0, max_tokens=4)
    return GenerationRequest(
        request_id=name, prompt_token_ids=list(range(tokens)), sampling=sampling, **fields
    )


async def collect(service: AdmittedService, asked: GenerationRequest) -> list[TokenDelta]:
    async with aclosing(service.generate(asked)) as steps:
        return [delta async for deltas in steps for delta in deltas]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0):
            await scenario()

    asyncio.run(main())


def test_a_request_runs_under_its_tenants_salt_and_class() -> None:
    async def scenario() -> None:
        world = World()
        low = Tenant("l", priority_class="low", may_set_priority=False)
        service = world.service(low)
        asyncio.get_running_loop().call_later(0.01, lambda: world.workers.finish("r"))
        await collect(service, request("r", cache_salt="own", priority=-5))
        [seen] = world.workers.started
        assert (seen.cache_salt, seen.priority) == (low.salt("own"), CLASS_BAND)
        assert seen.prompt_token_ids == list(range(10))

    run(scenario)


def test_whoever_finds_no_room_waits_here_and_not_at_the_worker() -> None:
    async def scenario() -> None:
        world = World()
        for name in "12345":
            await world.ask(name)
        assert world.started == ["1", "2"]
        service = world.service(Tenant("a"))
        assert (service.load().running, service.load().waiting) == (2, 3)
        world.clock.advance(3.0)
        world.registry.heard("w", LoadReport(), world.clock.now())
        await world.finish("1")
        assert world.started == ["1", "2", "3"]
        for name in "2345":
            deltas = await world.finish(name)
            assert [one.finish_reason for one in deltas] == [None, "length"]
        assert world.workers.most_at_once == PLACES
        assert world.gate.books.num_waiting == world.gate.books.running_of("a") == 0

    run(scenario)


def test_the_time_in_line_is_time_in_the_queue() -> None:
    async def scenario() -> None:
        world = World(places=1)
        await world.ask("1")
        await world.ask("2")
        world.clock.advance(3.0)
        world.registry.heard("w", LoadReport(), world.clock.now())
        first = await world.finish("1")
        second = await world.finish("2")
        assert first[0].timings == Timings(0.5, 0.25)
        assert second[0].timings == Timings(3.5, 0.25)
        assert second[1].timings is None

    run(scenario)


def test_many_who_wait_are_woken_one_by_one() -> None:
    async def scenario() -> None:
        world = World(places=1)
        for number in range(30):
            await world.ask(str(number))
        for number in range(30):
            assert world.started[-1] == str(number)
            await world.finish(str(number))
        assert world.workers.most_at_once == 1

    run(scenario)


def test_a_worker_that_comes_is_noticed() -> None:
    async def scenario() -> None:
        world = World(places=1)
        await world.ask("1")
        await world.ask("2")
        world.registry.expect("v")
        world.registry.connected("v", replace(worker_description("v"), max_num_seqs=1), world.clock.now())
        while "2" not in world.started:  # noqa: ASYNC110  nobody tells the test
            await asyncio.sleep(0.01)
        await world.finish("1")
        await world.finish("2")

    run(scenario)


def test_whoever_leaves_the_line_costs_nobody_a_turn() -> None:
    async def scenario() -> None:
        world = World(places=1)
        for name in "1234":
            await world.ask(name)
        world.tasks["2"].cancel()
        await settle()
        world.workers.finish("1")
        await world.tasks["1"]
        world.tasks["3"].cancel()  # perhaps at the very moment of its turn
        await settle()
        assert world.started in (["1", "4"], ["1", "3", "4"])
        await world.finish("4")
        assert world.gate.books.running_of("a") == world.gate.books.num_waiting == 0

    run(scenario)


def test_a_request_that_fails_holds_up_nobody() -> None:
    async def scenario() -> None:
        world = World(places=1)
        await world.ask("1")
        await world.ask("2")
        await world.ask("3")
        world.workers.error = EngineError("as the test wants it")
        world.workers.finish("1")
        await world.tasks["1"]
        for name in "23":
            with pytest.raises(EngineError):
                await world.tasks[name]
        world.workers.error = None
        await world.ask("4")
        await world.finish("4")
        assert world.gate.books.running_of("a") == 0

    run(scenario)


def test_a_deadline_passes_in_line() -> None:
    async def scenario() -> None:
        world = World(places=1)
        await world.ask("1")
        await world.ask("2", timeout_s=2.0)
        world.clock.advance(2.0)
        with pytest.raises(DeadlineExceededError, match=r"2\.0 s in line"):
            await world.tasks["2"]
        await world.finish("1")

    run(scenario)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    async def scenario() -> None:
        world = World(predict_ttft=lambda asked: 1.0 if asked.request_id == "1" else 9.0)
        await world.ask("1", timeout_s=5.0)
        await world.ask("2", timeout_s=5.0)
        with pytest.raises(ServiceUnavailableError, match=r"expected in 9\.0 s"):
            await world.tasks["2"]
        await world.ask("3")  # who names no deadline may have it late
        assert world.started == ["1", "3"]
        await world.finish("1")
        await world.finish("3")

    run(scenario)


def test_closing_sends_all_away_who_wait_and_none_who_run() -> None:
    async def scenario() -> None:
        world = World(places=1)
        await world.ask("1")
        await world.ask("2")
        world.gate.close(ServiceUnavailableError("shutting down"))
        await world.ask("3")
        for name in "23":
            with pytest.raises(ServiceUnavailableError, match="shutting down"):
                await world.tasks[name]
        assert len(await world.finish("1")) == 2

    run(scenario)


def test_one_tenant_leaves_room_for_another() -> None:
    async def scenario() -> None:
        world = World(places=4, are_several_tenants=lambda: True)
        for name in "1234":
            await world.ask(name)
        assert world.started == ["1", "2", "3"]
        await world.ask("other", Tenant("b"))
        assert world.started[-1] == "other"
        for name in ("other", *"1234"):
            await world.finish(name)

    run(scenario)


STEP = StepCosts(8e-3, 1e-3, 1e-6, 1e-4, 2e-3, chunk_tokens=100)


def test_what_was_measured_is_charged_in_seconds_of_a_worker() -> None:
    async def scenario() -> None:
        world = World(costs=lambda: Costs(steps={"w-life": STEP}))
        await world.ask("1")
        world.clock.advance(2.0)
        await world.finish("1")
        computed = 1.08e-3 * (10 - 2) + 1e-6 * (10**2 - 2**2)
        generated = 2 * (2e-3 + 8e-3) + 1e-4 * (11 + 12)
        held = KV_POOL * 11 * 2.0 / KV_TOKENS  # with its first token, for two seconds
        assert world.gate.books.cost_of("a") == pytest.approx(computed + generated + held)

    run(scenario)


def test_what_comes_to_be_known_of_the_workers_is_charged_within_a_second() -> None:
    async def scenario() -> None:
        known = [PRIOR_COSTS]
        world = World(costs=lambda: known[-1])
        before = world.gate.tariff()
        known.append(Costs(steps={"w-life": STEP}))
        world.clock.advance(TARIFF_S / 2)
        assert world.gate.tariff() is before
        world.clock.advance(TARIFF_S / 2)
        assert world.gate.tariff().token_s == pytest.approx(1.08e-3)

    run(scenario)


@pytest.mark.parametrize("token_s", [inf, nan])
def test_prices_that_are_none_change_nothing(token_s: float) -> None:
    async def scenario() -> None:
        known = [Costs(steps={"w-life": STEP})]
        world = World(costs=lambda: known[-1])
        world.clock.advance(TARIFF_S)
        before = world.gate.tariff()
        known.append(Costs(steps={"w-life": replaced(STEP, token_s=token_s)}))
        world.clock.advance(TARIFF_S)
        assert world.gate.tariff() is before
        known.append(Costs(steps={"w-life": replaced(STEP, token_s=2e-3, fixed_s=0.0)}))
        world.clock.advance(TARIFF_S)
        assert world.gate.tariff().token_s == pytest.approx(2e-3)

    run(scenario)


def test_tenants_share_by_the_seconds_that_their_work_takes() -> None:
    """Where prompts are dear and answers cheap, who sends long prompts has fewer turns; and the other way."""

    async def turns(costs: StepCosts) -> list[str]:
        world = World(places=1, costs=lambda: Costs(steps={"w-life": costs}))
        reader, writer = Tenant("reader"), Tenant("writer")
        for number in range(6):
            await world.ask(f"r{number}", reader, prompt=400)
            await world.ask(f"w{number}", writer, prompt=40)
        for _ in range(6):
            world.clock.advance(0.01)
            await world.finish(world.started[-1])
        for task in world.tasks.values():
            task.cancel()
        await asyncio.gather(*world.tasks.values(), return_exceptions=True)
        return world.started[:6]

    async def scenario() -> None:
        dear_prompts = await turns(StepCosts(1e-6, 1e-3, 1e-12, 1e-12, 1e-6))
        assert Counter(name[0] for name in dear_prompts) == {"r": 1, "w": 5}
        dear_answers = await turns(StepCosts(1e-6, 1e-9, 1e-15, 1e-12, 1e-3))
        assert Counter(name[0] for name in dear_answers) == {"r": 3, "w": 3}

    run(scenario)


def test_tokens_count_against_the_limit_as_they_come() -> None:
    async def scenario() -> None:
        world = World()
        tenant = Tenant("a", tokens_per_minute=12)
        limits = RateLimits(tenant, world.clock.now())
        service = AdmittedService(world.workers, world.gate, world.clock, Caller(tenant, limits))
        asyncio.get_running_loop().call_later(0.01, lambda: world.workers.finish("1"))
        await collect(service, request("1"))
        assert limits.allowances(world.clock.now())["tokens"].remaining == 0
        with pytest.raises(RateLimitError, match="12 tokens per minute"):
            await collect(service, request("2"))
        assert world.started == ["1"]

    run(scenario)


def test_a_refused_request_is_charged_nothing() -> None:
    async def scenario() -> None:
        world = World(places=1, rules=QueueRules(max_requests=1))
        await world.ask("1")
        await world.ask("2")
        tenant = Tenant("a", tokens_per_minute=100)
        limits = RateLimits(tenant, world.clock.now())
        service = AdmittedService(world.workers, world.gate, world.clock, Caller(tenant, limits))
        with pytest.raises(ServiceUnavailableError):
            await collect(service, request("3"))
        assert limits.allowances(world.clock.now())["tokens"].remaining == 100
        await world.finish("1")
        await world.finish("2")

    run(scenario)


def test_without_a_caller_nothing_is_generated() -> None:
    async def scenario() -> None:
        world = World()
        service = AdmittedService(world.workers, world.gate, world.clock)
        with pytest.raises(AuthenticationError):
            await collect(service, request("1"))
        assert world.started == []

    run(scenario)


def test_refusals_are_quick_however_long_the_line() -> None:
    async def scenario() -> None:
        world = World(places=1, rules=QueueRules(max_requests=2048))
        tasks = [
            asyncio.create_task(collect(world.service(Tenant(f"t{number % 50}")), request(str(number))))
            for number in range(2049)
        ]
        await settle()
        assert world.gate.books.num_waiting == 2048
        service = world.service(Tenant("t1"))
        began = time.perf_counter()
        for number in range(20):
            with pytest.raises(RateLimitError):
                await collect(service, request(f"late-{number}"))
        assert (time.perf_counter() - began) / 20 < 0.1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert world.gate.books.num_waiting == 0

    run(scenario)
