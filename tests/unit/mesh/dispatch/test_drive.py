"""However and whenever a request ends, no leg, commitment or ticket is left, and none is let go of twice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from atomesh.errors import EngineError, ServiceUnavailableError
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.dispatch import legs as legs_module
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport, Role
from atomesh.testing.mesh_snapshots import worker_description
from atomesh.testing.scripted_backend import ScriptedMesh

REQUEST = GenerationRequest(
    request_id="r", prompt_token_ids=[1] * 30, sampling=SamplingSpec(seed=0, max_tokens=4)
)
PAIR: dict[str, Role] = {"p": "prefill", "d": "decode"}
PAIRS: dict[str, Role] = {**PAIR, "e": "decode"}
REQUIRED = DispatchRules(placement=PlacementRules(require_disaggregation=True))


class Asked:
    """A client: `tokens` is what it has, `task` ends with its answer."""

    def __init__(self, mesh: ScriptedMesh) -> None:
        self.mesh = mesh
        self.tokens: list[int] = []
        self.generator = mesh.dispatcher.generate(REQUEST)
        self.task = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        try:
            async for deltas in self.generator:
                self.tokens += [token for delta in deltas for token in delta.token_ids]
        finally:
            await self.generator.aclose()


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(10.0):
            await scenario()

    asyncio.run(main())


def silence(mesh: ScriptedMesh) -> None:
    mesh.clock.advance(2.0)


def wake(mesh: ScriptedMesh) -> None:
    for name in mesh.backends:
        mesh.registry.heard(name, LoadReport(), mesh.clock.now())


def first_token(mesh: ScriptedMesh) -> None:
    mesh.backends["p"].say(9)


def second_token(mesh: ScriptedMesh) -> None:
    mesh.backends["d"].say(8, kv_source="transferred")


def lose_decode(mesh: ScriptedMesh) -> None:
    mesh.registry.lost("d")
    mesh.backends["d"].streams[-1].fail(WorkerLostError())


def lose_source(mesh: ScriptedMesh) -> None:
    mesh.registry.lost("p")
    mesh.backends["p"].streams[-1].fail(WorkerLostError())


def rest_token(mesh: ScriptedMesh) -> None:
    mesh.backends["p"].say(7, kv_source="recomputed")


STATES: dict[str, list[Callable[[ScriptedMesh], None]]] = {
    "waiting for a silent worker": [silence],
    "waiting for prefill": [],
    "waiting for prefill, placed late": [silence, wake],
    "waiting for decode's first token": [first_token],
    "decode has a grace period": [first_token, lose_source],
    "waiting for decode": [first_token, second_token],
    "the rest waits for a silent worker": [first_token, second_token, silence, lose_decode],
    "waiting for the rest": [first_token, second_token, lose_decode],
    "waiting for more of the rest": [first_token, second_token, lose_decode, rest_token],
}
ENDS = ["cancelled", "deadline"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("steps", STATES.values(), ids=STATES.keys())
def test_leaving_in_any_state_leaves_nothing(
    steps: list[Callable[[ScriptedMesh], None]], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs_module, "GRACE_S", 60.0)

    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        if steps[:1] == [silence]:
            silence(mesh)
        asked = Asked(mesh)
        await settle()
        for step in steps[steps[:1] == [silence] :]:
            step(mesh)
            await settle()
        assert not asked.task.done()
        if end == "cancelled":
            asked.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked.task
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asked.task, 0)
        assert mesh.leftovers == []
        wake(mesh)
        await settle()
        assert mesh.leftovers == []

    run(scenario)


def test_leaving_between_the_legs_tells_both() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        steps = mesh.dispatcher.generate(REQUEST)
        waiting = asyncio.ensure_future(anext(steps))
        await settle()
        first_token(mesh)
        assert [delta.token_ids for delta in await waiting] == [[9]]
        await steps.aclose()
        assert mesh.leftovers == []
        assert mesh.backends["p"].left == [True]
        assert mesh.backends["d"].streams == []
        assert mesh.backends["d"].called_off == ["r"]

    run(scenario)


def test_a_generator_that_was_never_begun_has_sent_nothing() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        await mesh.dispatcher.generate(REQUEST).aclose()
        assert mesh.leftovers == []
        assert mesh.backends["p"].streams == []

    run(scenario)


def test_an_answer_lets_go_of_each_leg_once() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        asked = Asked(mesh)
        await settle()
        assert (mesh.work("p"), mesh.work("d")) == ((1, 30, 1), (1, 0, 1))
        first_token(mesh)
        await settle()
        assert (mesh.work("p"), mesh.work("d")) == ((1, 0, 1), (1, 0, 1))
        second_token(mesh)
        await settle()
        assert (mesh.work("p"), mesh.work("d")) == ((0, 0, 0), (1, 0, 1))
        mesh.backends["d"].say(7, finish_reason="length")
        await asked.task
        assert asked.tokens == [9, 8, 7]
        assert mesh.leftovers == []
        assert (mesh.backends["p"].left, mesh.backends["d"].left) == ([False], [False])
        assert mesh.backends["d"].called_off == []
        assert mesh.office.minted == 1

    run(scenario)


def test_a_decode_worker_that_was_restarted_between_the_legs_gets_the_rest_without_the_ticket() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        asked = Asked(mesh)
        await settle()
        another = replace(worker_description("d", "decode"), incarnation="another life")
        mesh.registry.lost("d")
        mesh.registry.connected("d", another, mesh.clock.now())
        first_token(mesh)
        await settle()
        assert [request.request_id for request in mesh.backends["d"].requests] == ["r~2"]
        assert mesh.backends["p"].left == [True]
        mesh.backends["d"].say(8, kv_source="recomputed")
        mesh.backends["d"].say(7, finish_reason="length")
        await asked.task
        assert asked.tokens == [9, 8, 7]
        assert mesh.leftovers == []

    run(scenario)


def test_a_decode_worker_that_was_removed_between_the_legs_is_a_lost_one() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR)
        asked = Asked(mesh)
        await settle()
        gone = mesh.backends.pop("d")
        mesh.registry.forget("d")
        first_token(mesh)
        await settle()
        assert gone.streams == []
        assert [request.request_id for request in mesh.backends["p"].requests] == ["r", "r~2"]
        mesh.backends["p"].say(8, 7, kv_source="recomputed", finish_reason="length")
        await asked.task
        assert asked.tokens == [9, 8, 7]
        assert mesh.leftovers == []

    run(scenario)


def test_no_attempt_has_anothers_id() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIRS)
        asked = Asked(mesh)
        await settle()
        mesh.backends["p"].streams[0].fail(ServiceUnavailableError("draining"))
        mesh.registry.lost("p")
        await settle()
        [whole] = [name for name in ("d", "e") if mesh.backends[name].streams]
        [rest] = {"d", "e"} - {whole}
        mesh.backends[whole].say(9)
        await settle()
        mesh.backends[whole].streams[0].fail(WorkerLostError())
        mesh.registry.lost(whole)
        await settle()
        mesh.backends[rest].say(8, kv_source="recomputed", finish_reason="stop")
        await asked.task
        ids = [one.request_id for name in ("p", whole, rest) for one in mesh.backends[name].requests]
        assert ids == ["r", "r~2", "r~3"]
        assert asked.tokens == [9, 8]
        assert mesh.leftovers == []
        assert dict(mesh.dispatcher.counts) == {"retries": 1, "migrations": 1}

    run(scenario)


def test_where_two_are_required_the_rest_is_another_hand_off() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIRS, REQUIRED)
        asked = Asked(mesh)
        await settle()
        first_token(mesh)
        await settle()
        [lost] = [name for name in ("d", "e") if mesh.backends[name].streams]
        [other] = {"d", "e"} - {lost}
        mesh.backends[lost].say(8, kv_source="transferred")
        await settle()
        mesh.registry.lost(lost)
        mesh.backends[lost].streams[0].fail(WorkerLostError())
        await settle()
        assert mesh.office.minted == 2
        first_token(mesh)
        await settle()
        mesh.backends[other].say(8, kv_source="transferred")
        mesh.backends[other].say(7, finish_reason="length")
        await asked.task
        assert asked.tokens == [9, 8, 7]
        assert mesh.leftovers == []

    run(scenario)


def test_where_two_are_required_one_is_not_enough_for_the_rest() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIR, REQUIRED)
        asked = Asked(mesh)
        await settle()
        first_token(mesh)
        await settle()
        lose_decode(mesh)
        with pytest.raises(ServiceUnavailableError, match="lost") as told:
            await asked.task
        assert told.value.retry_after_s == 2
        assert asked.tokens == [9]
        assert mesh.leftovers == []

    run(scenario)


def test_an_error_of_the_flow_itself_leaves_nothing_either() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(PAIRS, REQUIRED)
        asked = Asked(mesh)
        await settle()
        first_token(mesh)
        await settle()
        [lost] = [name for name in ("d", "e") if mesh.backends[name].streams]
        mesh.registry.lost(lost)
        mesh.backends[lost].streams[0].fail(WorkerLostError())
        await settle()
        mesh.backends["p"].say(6)  # not what the client has
        with pytest.raises(EngineError, match="same answer"):
            await asked.task
        assert mesh.leftovers == []

    run(scenario)
