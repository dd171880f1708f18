import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from atomesh.errors import InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.backends.worker_news import WorkerNews
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch import placer as placer_module
from atomesh.mesh.dispatch.placer import START_S, Later, MeshRules, Placer
from atomesh.mesh.dispatch.shared import share
from atomesh.mesh.placement.placement import PlacementRules, PrefillDecode, Rest, Unified
from atomesh.mesh.placement.policies.rules import PolicyRules
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.roofline import Roofline
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport, Role, WorkerDescription
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.mesh_snapshots import MODEL, worker_description, worker_snapshot

NOBODY: frozenset[str] = frozenset()
REQUEST = GenerationRequest(
    request_id="r", prompt_token_ids=[1, 2], sampling=SamplingSpec(seed=0, max_tokens=4)
)
WHOLE = Place(REQUEST, NOBODY)
REST = PlaceRest(Rest(worker_snapshot("x"), 10, 1, REQUEST), NOBODY)


class World:
    def __init__(self, *names: str, rules: PlacementRules | None = None) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry(lambda _: None)
        for name in names:
            self.registry.expect(name)
        mesh_rules = MeshRules(rules or PlacementRules(), PolicyRules())
        self.shared = share(b"s" * 32)
        self.placer = Placer(MODEL, self.registry, self.clock, mesh_rules, self.shared)

    def hello(self, name: str, role: Role) -> None:
        self.say_hello(name, worker_description(name, role))

    def say_hello(self, name: str, description: WorkerDescription) -> None:
        self.registry.connected(name, description, self.clock.now())

    def hear(self, name: str) -> None:
        self.registry.heard(name, LoadReport(), self.clock.now())

    def place(self) -> Placed | Nowhere | Later:
        return self.placer.ask(WHOLE)


def workers_of(answer: Placed | Nowhere | Later) -> list[str]:
    assert isinstance(answer, Placed)
    match answer.placement:
        case Unified(worker):
            return [worker.address]
        case PrefillDecode(prefill, decode):
            return [prefill.address, decode.address]


def test_nobody_serves_against_its_role_while_others_are_starting() -> None:
    world = World("p", "d")
    world.hello("p", "prefill")
    with pytest.raises(ServiceUnavailableError, match="starting"):
        world.placer.describe()
    assert isinstance(world.place(), Nowhere)
    world.hello("d", "decode")
    assert world.placer.describe().name == MODEL
    assert workers_of(world.place()) == ["p", "d"]


def test_but_when_they_do_not_come_at_all() -> None:
    world = World("p", "d")
    world.clock.advance(START_S)
    world.hello("p", "prefill")
    placed = world.place()
    assert isinstance(placed, Placed)
    assert isinstance(placed.placement, Unified)
    assert placed.placement.is_fallback


def test_and_at_once_when_they_were_there_before() -> None:
    world = World("p", "d")
    world.hello("p", "prefill")
    world.hello("d", "decode")
    world.registry.lost("p")
    assert workers_of(world.place()) == ["d"]


def test_a_closed_placer_places_nothing() -> None:
    world = World("u")
    world.hello("u", "unified")
    world.placer.close()
    for answer in (world.place(), world.placer.ask(REST)):
        assert isinstance(answer, Nowhere)
        assert "shutting down" in str(answer.error)


def test_the_rest_goes_to_one_that_has_not_failed_it() -> None:
    world = World("u", "v")
    world.hello("u", "unified")
    world.hello("v", "unified")
    rest = PlaceRest(Rest(worker_snapshot("u"), 10, 1, REQUEST), frozenset({"u-life"}))
    assert workers_of(world.placer.ask(rest)) == ["v"]


def test_the_model_is_as_long_as_its_least_worker_serves() -> None:
    world = World("u", "v")
    world.hello("u", "unified")
    small = worker_description("v")
    world.say_hello("v", replace(small, model=replace(small.model, max_model_len=100)))
    assert world.placer.describe().max_model_len == 100


def test_the_model_is_described_while_all_are_silent() -> None:
    world = World("u")
    world.hello("u", "unified")
    world.clock.advance(2.0)
    assert world.placer.describe().name == MODEL
    world.registry.lost("u")
    with pytest.raises(ServiceUnavailableError, match="no worker is ready"):
        world.placer.describe()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0):
            await scenario()

    asyncio.run(main())


async def asking(world: World, wanted: Place | PlaceRest = WHOLE) -> "asyncio.Task[Placed | Nowhere]":
    """What has been asked of the placer, and is waiting there."""
    task = asyncio.create_task(world.placer.find(wanted))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("wanted", [WHOLE, REST], ids=["whole", "rest"])
def test_c8_the_only_worker_gets_nothing_while_it_is_silent_and_all_when_it_is_heard(
    wanted: Place | PlaceRest,
) -> None:
    async def scenario() -> None:
        world = World("u")
        world.hello("u", "unified")
        world.clock.advance(1.0)
        assert workers_of(world.placer.ask(wanted)) == ["u"]
        world.clock.advance(0.01)
        assert isinstance(world.placer.ask(wanted), Later)
        waiting = [await asking(world, wanted) for _ in range(3)]
        world.registry.set_weights("u", worker_snapshot("u").weights)  # news, but it is as silent as before
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        world.hear("u")
        assert [workers_of(await task) for task in waiting] == [["u"]] * 3

    run(scenario)


def test_c8_what_waits_is_refused_once_the_silent_are_lost() -> None:
    async def scenario() -> None:
        world = World("u", "v")
        world.hello("u", "unified")
        world.hello("v", "unified")
        world.clock.advance(1.5)
        waiting = await asking(world)
        world.registry.lost("u")
        await asyncio.sleep(0)
        assert not waiting.done()
        world.registry.lost("v")
        answer = await waiting
        assert isinstance(answer, Nowhere)
        assert isinstance(answer.error, ServiceUnavailableError)
        assert answer.error.retry_after_s == 2

    run(scenario)


def test_c8_a_new_worker_takes_what_waits() -> None:
    async def scenario() -> None:
        world = World("u", "v")
        world.hello("u", "unified")
        world.clock.advance(1.5)
        waiting = await asking(world)
        world.hello("v", "unified")
        assert workers_of(await waiting) == ["v"]

    run(scenario)


def test_c8_a_pair_that_is_required_is_waited_for() -> None:
    async def scenario() -> None:
        world = World("p", "d", rules=PlacementRules(require_disaggregation=True))
        world.hello("p", "prefill")
        world.hello("d", "decode")
        world.clock.advance(1.5)
        world.hear("p")
        waiting = await asking(world)
        world.hear("p")
        await asyncio.sleep(0)
        assert not waiting.done()
        world.hear("d")
        assert workers_of(await waiting) == ["p", "d"]

    run(scenario)


def test_c8_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer_module, "PATIENCE_S", 0.01)

    async def scenario() -> None:
        world = World("u")
        world.hello("u", "unified")
        world.clock.advance(1.5)
        answer = await world.placer.find(WHOLE)
        assert isinstance(answer, Nowhere)
        assert isinstance(answer.error, ServiceUnavailableError)
        assert "silent" in str(answer.error)
        assert answer.error.retry_after_s == 2

    run(scenario)


def test_c8_who_leaves_while_waiting_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        world = World("u")
        world.hello("u", "unified")
        world.clock.advance(1.5)
        waiting = await asking(world)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        world.hear("u")
        assert world.registry.num_heeding == 0
        assert world.registry.snapshot().workers[0].dispatched == 0

    run(scenario)


def test_c8_a_server_that_shuts_down_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        world = World("u")
        world.hello("u", "unified")
        world.clock.advance(1.5)
        waiting = await asking(world)
        world.placer.close()
        answer = await waiting
        assert isinstance(answer, Nowhere)
        assert "shutting down" in str(answer.error)

    run(scenario)


def cached(answer: Placed | Nowhere | Later) -> tuple[list[str], int]:
    assert isinstance(answer, Placed)
    return workers_of(answer), answer.placement.cached_tokens


LONG = replace(REQUEST, prompt_token_ids=list(range(100)))


def test_a_prompt_is_expected_where_it_was_just_sent_and_only_under_its_own_salt() -> None:
    world = World("u", "v")
    for name in ("u", "v"):
        world.hello(name, "unified")
        world.shared.knowledge.index.exact.join(f"{name}-life")
    [first], nothing = cached(world.placer.ask(Place(LONG, NOBODY)))
    assert nothing == 0
    world.registry.commit(first, prefill_tokens=100, sequences=1)
    assert cached(world.placer.ask(Place(LONG, NOBODY))) == ([first], 96)
    other = replace(LONG, cache_salt="tenant b")
    assert cached(world.placer.ask(Place(other, NOBODY)))[1] == 0


def test_what_was_predicted_is_forgotten_with_the_worker() -> None:
    world = World("u")
    world.hello("u", "unified")
    world.shared.knowledge.index.exact.join("u-life")
    world.placer.ask(Place(LONG, NOBODY))
    world.shared.knowledge.index.drop("u-life")
    assert cached(world.placer.ask(Place(LONG, NOBODY))) == (["u"], 0)


def test_an_unknown_policy_is_the_requests_own_fault() -> None:
    world = World("u")
    world.hello("u", "unified")
    answer = world.placer.ask(Place(replace(LONG, policy="best"), NOBODY))
    assert isinstance(answer, Nowhere)
    assert isinstance(answer.error, InvalidRequestError)


def test_the_decision_is_kept_for_who_asks_why() -> None:
    world = World("u")
    world.hello("u", "unified")
    account = world.shared.explanations.open("r", MODEL, choices=1)
    world.placer.ask(Place(LONG, NOBODY))
    [attempt] = account.attempts
    assert attempt.explanation.chosen.prefill == "u"
    assert attempt.explanation.policy == "kv_aware"


@pytest.mark.parametrize("fast", ["a", "b"])
def test_the_very_first_request_goes_to_the_worker_that_can_be_faster(fast: str) -> None:
    world = World("a", "b")
    for name in "ab":
        per_s = 1e12 if name == fast else 1e11
        bounds = Roofline(
            weight_bytes=10**9,
            token_flops=10**9,
            sequence_flops=10**9,
            pair_flops=10**5,
            kv_bytes=10**4,
            flops_per_s=per_s,
            bytes_per_s=per_s,
        )
        worker = replace(worker_description(name, layout=None), roofline=bounds)
        world.say_hello(name, worker)
        WorkerNews(worker, world.shared.knowledge, lambda: None, world.clock.now())
    assert workers_of(world.place()) == [fast]


@pytest.mark.parametrize("roles", [("unified",), ("prefill", "decode")])
def test_to_describe_the_model_takes_a_look_at_each_worker_and_no_more(roles: Sequence[Role]) -> None:
    def calls(num_workers: int) -> int:
        world = World(*(f"w{n}" for n in range(num_workers)))
        for n in range(num_workers):
            world.hello(f"w{n}", roles[n % len(roles)])
        return count_calls(world.placer.describe)

    assert calls(256) < 4 * calls(64)


def count_calls(of: Callable[[], object]) -> int:
    """Calls of functions, Python's and C's, while `of` runs."""
    count = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        of()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("policy", "is_hashed"), [("", False), ("round_robin", False), ("session", True), ("prefix_hash", True)]
)
@pytest.mark.parametrize("num_tokens", [64, 2**20])
def test_in_text_a_prompt_is_hashed_where_its_policy_reads_it(
    policy: str, is_hashed: bool, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def chains(_self: object, request: GenerationRequest, _workers: object) -> dict[object, object]:
        hashed.append(request.request_id)
        return {}

    monkeypatch.setattr(placer_module.PromptHashes, "chains", chains)
    world = World("u")
    world.hello("u", "unified")
    rules = MeshRules(PlacementRules(), PolicyRules().with_default("least_work"), hashes_all=False)
    placer = Placer(MODEL, world.registry, world.clock, rules, world.shared)
    request = replace(REQUEST, policy=policy, prompt_token_ids=[1] * num_tokens)
    answer = asyncio.run(placer.find(Place(request, NOBODY)))

    assert workers_of(answer) == ["u"]
    assert hashed == ["r"] * is_hashed
