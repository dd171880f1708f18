import pytest
from msgspec.structs import replace

from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.placer import START_S, Placer
from atomesh.mesh.placement.placement import PlacementRules, PrefillDecode, Unified
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import Role, WorkerDescription
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.mesh_snapshots import MODEL, worker_description, worker_snapshot

NOBODY: frozenset[str] = frozenset()
REQUEST = GenerationRequest(
    request_id="r", prompt_token_ids=[1, 2], sampling=SamplingSpec(seed=0, max_tokens=4)
)


class World:
    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        self.registry = WorkerRegistry(lambda _: None)
        for name in names:
            self.registry.expect(name)
        self.placer = Placer(MODEL, self.registry, self.clock, PlacementRules())

    def hello(self, name: str, role: Role) -> None:
        self.say_hello(name, worker_description(name, role))

    def say_hello(self, name: str, description: WorkerDescription) -> None:
        self.registry.connected(name, description, self.clock.now())

    def place(self, excluded: frozenset[str] = NOBODY) -> Placed | Nowhere:
        return self.placer.place(Place(REQUEST, excluded))


def test_nobody_serves_against_its_role_while_others_are_starting() -> None:
    world = World("p", "d")
    world.hello("p", "prefill")
    with pytest.raises(ServiceUnavailableError, match="starting"):
        world.placer.describe()
    assert isinstance(world.place(), Nowhere)
    world.hello("d", "decode")
    assert world.placer.describe().name == MODEL
    placed = world.place()
    assert isinstance(placed, Placed)
    assert isinstance(placed.placement, PrefillDecode)


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
    assert isinstance(world.place(), Placed)


def test_a_closed_placer_places_nothing() -> None:
    world = World("u")
    world.hello("u", "unified")
    world.placer.is_closed = True
    rest = PlaceRest(worker_snapshot("x"), 10, 1, NOBODY)
    for answer in (world.place(), world.placer.place_rest(rest)):
        assert isinstance(answer, Nowhere)
        assert "shutting down" in answer.error.message


def test_the_rest_goes_to_one_that_has_not_failed_it() -> None:
    world = World("u", "v")
    world.hello("u", "unified")
    world.hello("v", "unified")
    rest = PlaceRest(worker_snapshot("u"), 10, 1, frozenset({"u-life"}))
    placed = world.placer.place_rest(rest)
    assert isinstance(placed, Placed)
    assert isinstance(placed.placement, Unified)
    assert placed.placement.worker.address == "v"


def test_the_model_is_as_long_as_its_least_worker_serves() -> None:
    world = World("u", "v")
    world.hello("u", "unified")
    small = worker_description("v")
    world.say_hello("v", replace(small, model=replace(small.model, max_model_len=100)))
    assert world.placer.describe().max_model_len == 100
