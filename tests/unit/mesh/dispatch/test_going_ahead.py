"""Tokens that go to the client ahead of all who count them: what becomes of them, however it all ends."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import EngineError
from atomesh.frontend.generation import ChoicePiece, Generation, StepPieces, TextOptions
from atomesh.frontend.token_service import TokenService
from atomesh.mesh.admission.rate_limits import RateLimits
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.backends.request_stream import CARRIED_STEPS
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.mesh.cluster.breaker import CLOSED
from atomesh.mesh.dispatch.admission import AdmissionGate
from atomesh.mesh.dispatch.admitted_service import AdmittedService
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.dispatch.visit import Caller
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import Role
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.mesh_snapshots import MODEL
from atomesh.testing.scripted_backend import ScriptedBackend, ScriptedMesh

PROMPT = 30
LETTERS = 97
ONE: dict[str, Role] = {"u": "unified"}
TWO: dict[str, Role] = {"u": "unified", "v": "unified"}
PAIRS: dict[str, Role] = {"p": "prefill", "d": "decode", "e": "decode"}
REQUIRED = DispatchRules(placement=PlacementRules(require_disaggregation=True))


class Client:
    """A delivery, and the reader of what it does not take, as a stream's: `pieces` in the order of arrival.

    While it is not free, its reader waits too, as for a transport that is paused.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.pieces: list[ChoicePiece] = []
        self.num_ahead = 0
        self.fault: Exception | None = None
        self._takes = asyncio.Event()
        self._takes.set()
        self._is_read_for = False
        self.task = asyncio.create_task(self._read())

    @property
    def is_free(self) -> bool:
        return self._takes.is_set() and not self._is_read_for

    def pause(self, is_paused: bool) -> None:
        if is_paused:
            self._takes.clear()
        else:
            self._takes.set()

    def deliver(self, step: StepPieces) -> None:
        if self.fault is not None:
            raise self.fault
        self.num_ahead += 1
        self.pieces += step.pieces

    def tokens(self, choice: int = 0) -> list[int]:
        return [token for piece in self.pieces if piece.choice == choice for token in piece.token_ids]

    def ends(self) -> dict[int, list[str]]:
        ends: dict[int, list[str]] = {}
        for piece in self.pieces:
            if piece.finish_reason is not None:
                ends.setdefault(piece.choice, []).append(piece.finish_reason)
        return ends

    async def _read(self) -> None:
        async with aclosing(self.generation.steps(self)) as steps:
            async for step in steps:
                self._is_read_for = True
                await self._takes.wait()
                self.pieces += step.pieces
                self._is_read_for = False


def client_of(service: TokenService, n: int = 1, stop: tuple[str, ...] = ()) -> Client:
    sampling = SamplingSpec(seed=0, max_tokens=512)
    asked = GenerationRequest(request_id="r", prompt_token_ids=[1] * PROMPT, sampling=sampling, n=n)
    tokenizer: Any = ByteTokenizer()
    return Client(Generation(asked, TextOptions(stop=stop), tokenizer, service))


@dataclass
class Talk:
    """One request on a mesh."""

    mesh: ScriptedMesh
    client: Client

    @property
    def worker(self) -> ScriptedBackend:
        """The one that computes now; a prefill worker comes first in its mesh."""
        return [one for one in self.mesh.backends.values() if len(one.streams) > len(one.left)][-1]

    async def begin(self, *tokens: int) -> None:
        """The first step, which brings each choice one token, and whatever comes of it."""
        await settle()
        self.say(*((choice, token) for choice, token in enumerate(tokens)))
        await settle()

    def say(self, *told: tuple[int, int], **fields: Any) -> None:
        """One step, of a token for each of those choices."""
        worker = self.worker
        request_id = worker.requests[-1].request_id
        deltas = [
            TokenDelta(request_id=request_id, choice=choice, token_ids=[token], **fields)
            for choice, token in told
        ]
        worker.streams[-1].push(deltas)

    def lose(self) -> None:
        """The worker dies."""
        worker = self.worker
        [name] = [name for name, backend in self.mesh.backends.items() if backend is worker]
        self.mesh.registry.lost(name)
        worker.streams[-1].fail(WorkerLostError())

    @property
    def output_tokens(self) -> int:
        """As the request's explanation has it."""
        account = self.mesh.shared.explanations.get("r")
        assert account is not None
        return account.measured.output_tokens


def talk(roles: dict[str, Role], rules: DispatchRules | None = None, **asked: Any) -> Talk:
    mesh = ScriptedMesh(roles, rules)
    return Talk(mesh, client_of(mesh.dispatcher, **asked))


async def settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0):
            await scenario()

    asyncio.run(main())


@pytest.mark.parametrize("untold", [0, 1, 7, CARRIED_STEPS - 1, CARRIED_STEPS, 50])
def test_a_death_of_the_worker_moves_exactly_what_the_client_has(untold: int) -> None:
    async def scenario() -> None:
        one = talk(TWO)
        await one.begin(LETTERS)
        said = [LETTERS]
        for token in range(untold):
            one.say((0, token))
            said.append(token)
        one.lose()
        await settle()
        assert one.client.tokens() == said
        leg = one.worker.legs[-1]
        assert isinstance(leg, DecodeLeg)
        assert leg.outputs == {0: said}
        for token in (5, 6):
            one.say((0, token))
            await settle()
        one.say((0, 7), finish_reason="length")
        await one.client.task
        assert one.client.tokens() == [*said, 5, 6, 7]
        assert one.client.generation.serving_path == "recomputed"
        assert one.output_tokens == len(said) + 3
        assert one.mesh.leftovers == []
        assert +one.mesh.dispatcher.counts == {"migrations": 1}

    run(scenario)


def test_a_stop_string_that_is_complete_ahead_ends_the_worker_s_leg_at_once() -> None:
    async def scenario() -> None:
        one = talk(ONE, stop=("XY",))
        await one.begin(LETTERS)
        for letter in b"bXY":
            one.say((0, letter))
        one.say((0, LETTERS))  # on its way already
        await one.client.task
        assert one.mesh.backends["u"].left == [True]
        assert one.client.num_ahead == 3
        assert "".join(piece.text for piece in one.client.pieces) == "ab"
        assert one.client.ends() == {0: ["stop"]}
        assert one.client.generation.completion_tokens == 4
        assert one.mesh.leftovers == []

    run(scenario)


def test_one_choice_s_stop_string_leaves_the_others_whole() -> None:
    async def scenario() -> None:
        one = talk(ONE, n=2, stop=("XY",))
        await one.begin(LETTERS, LETTERS)
        for letter in b"XY":
            one.say((0, letter), (1, letter + 32))
        for token in (1, 2):
            one.say((0, token), (1, token))  # the engine goes on with both
            await settle()
        one.say((1, 3))
        assert one.client.num_ahead == 3
        one.say((0, 4), (1, 4), finish_reason="length")
        await one.client.task
        assert (one.client.tokens(0), one.client.tokens(1)) == ([97, 88, 89], [97, 120, 121, 1, 2, 3, 4])
        assert one.client.ends() == {0: ["stop"], 1: ["length"]}
        assert one.client.generation.completion_tokens == 10
        assert one.mesh.leftovers == []

    run(scenario)


@pytest.mark.parametrize(
    "fault", [LookupError("a bug"), EngineError("as if the worker had failed")], ids=repr
)
def test_a_fault_of_the_client_s_side_is_none_of_the_worker_s(fault: Exception) -> None:
    async def scenario() -> None:
        one = talk(TWO)
        await one.begin(LETTERS)
        one.client.fault = fault
        worker = one.worker
        one.say((0, 1))
        one.say((0, 2))
        with pytest.raises(type(fault)) as caught:
            await one.client.task
        assert caught.value is fault
        assert worker.left == [True]
        assert +one.mesh.dispatcher.counts == {}
        assert one.mesh.leftovers == []
        assert [w.breaker for w in one.mesh.registry.snapshot().workers] == [CLOSED] * 2

    run(scenario)


@pytest.mark.parametrize("num_ahead", [0, 1, CARRIED_STEPS - 1, CARRIED_STEPS, CARRIED_STEPS + 5])
def test_whoever_leaves_is_charged_for_all_that_it_has(num_ahead: int) -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(ONE)
        tenant = Tenant("a", tokens_per_minute=1000)
        limits = RateLimits(tenant, mesh.clock.now())
        gate = AdmissionGate(MODEL, mesh.registry, mesh.clock)
        admitted = AdmittedService(mesh.dispatcher, gate, mesh.clock, Caller(tenant, limits))
        one = Talk(mesh, client_of(admitted))
        await one.begin(LETTERS)
        for token in range(num_ahead):
            one.say((0, token))
        await asyncio.sleep(0)
        one.client.task.cancel()
        await asyncio.wait({one.client.task})
        has = len(one.client.tokens())
        assert has == 1 + num_ahead
        assert limits.allowances(mesh.clock.now())["tokens"].remaining == 1000 - PROMPT - has
        assert one.output_tokens == has
        assert mesh.backends["u"].left == [True]
        assert mesh.leftovers == []

    run(scenario)


def test_charges_are_never_further_behind_than_what_goes_ahead() -> None:
    async def scenario() -> None:
        mesh = ScriptedMesh(ONE)
        tenant = Tenant("a", tokens_per_minute=1000)
        limits = RateLimits(tenant, mesh.clock.now())
        gate = AdmissionGate(MODEL, mesh.registry, mesh.clock)
        admitted = AdmittedService(mesh.dispatcher, gate, mesh.clock, Caller(tenant, limits))
        one = Talk(mesh, client_of(admitted))
        await one.begin(LETTERS)
        for token in range(100):
            one.say((0, token))
            await asyncio.sleep(0)
            charged = 1000 - PROMPT - limits.allowances(mesh.clock.now())["tokens"].remaining
            assert len(one.client.tokens()) - charged <= CARRIED_STEPS + 8
        one.client.task.cancel()
        await asyncio.wait({one.client.task})

    run(scenario)


def test_after_a_hand_off_the_second_worker_s_tokens_go_ahead() -> None:
    async def scenario() -> None:
        one = talk({"p": "prefill", "d": "decode"})
        await one.begin(LETTERS)
        one.say((0, 1), kv_source="transferred")
        await settle()
        one.say((0, 2))
        await settle()
        assert one.client.num_ahead == 0
        for token in (3, 4):
            one.say((0, token))
        assert one.client.num_ahead == 2
        one.say((0, 5), finish_reason="length")
        await one.client.task
        assert one.client.tokens() == [LETTERS, 1, 2, 3, 4, 5]
        assert one.client.generation.serving_path == "prefill-decode"
        assert one.mesh.leftovers == []

    run(scenario)


def test_what_is_heard_again_goes_nowhere_and_what_follows_goes_ahead() -> None:
    async def scenario() -> None:
        one = talk(PAIRS, REQUIRED)
        await one.begin(LETTERS)
        one.say((0, 1), kv_source="transferred")
        await settle()
        for token in (2, 3):
            one.say((0, token))
            await settle()
        one.lose()
        await settle()
        [left] = [name for name in ("d", "e") if not one.mesh.backends[name].streams]
        one.mesh.backends["p"].say(LETTERS)
        await settle()
        decode = one.mesh.backends[left]
        decode.say(1, kv_source="transferred")
        for token in (2, 3, 4, 5):
            await settle()
            decode.say(token)
        assert one.client.num_ahead == 2, "3 of the first worker, 5 of the second"
        decode.say(6, finish_reason="length")
        await one.client.task
        assert one.client.tokens() == [LETTERS, 1, 2, 3, 4, 5, 6]
        assert one.output_tokens == 7
        assert one.mesh.leftovers == []

    run(scenario)


def test_steps_of_choices_that_never_were_hide_no_news() -> None:
    """The way that the answer takes in the end is told with the first token that has taken it."""

    async def scenario() -> None:
        one = talk(TWO)
        await one.begin(LETTERS)
        one.lose()
        await settle()
        for _ in range(3):
            one.say((7, 1), (-1, 2))
            await settle()
        for token in (1, 2):
            one.say((0, token))
        await settle()
        assert one.client.generation.serving_path == "recomputed"
        one.say((0, 3), finish_reason="length")
        await one.client.task
        assert one.client.tokens() == [LETTERS, 1, 2, 3]

    run(scenario)


STEP = st.tuples(st.just("say"), st.lists(st.tuples(st.integers(0, 3), st.sampled_from(b"abX")), max_size=4))
EVENT = st.one_of(
    STEP,
    STEP,
    STEP,
    st.tuples(st.just("wait"), st.integers(0, 4)),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("lose"), st.none()),
)
STOP = "bX"
LAST = 99


def expected(said: list[int]) -> tuple[list[int], list[str]]:
    """The tokens and the ends of a choice to which these bytes were said, up to its stop string."""
    at = bytes(said).find(STOP.encode())
    return (said, []) if at < 0 else (said[: at + len(STOP)], ["stop"])


class Course:
    """A request to which anything may happen, and what was `said` to each of its choices."""

    def __init__(self, n: int) -> None:
        self.one = talk(TWO, n=n, stop=(STOP,))
        self.said = {choice: [LETTERS] for choice in range(n)}
        self._has_lost = False

    @property
    def is_over(self) -> bool:
        return all(expected(tokens)[1] for tokens in self.said.values())

    async def let(self, name: str, what: Any) -> None:
        match name:
            case "say":
                self.one.say(*what)
                for choice, token in what:
                    self.said.get(choice, []).append(token)
            case "wait":
                for _ in range(what):
                    await asyncio.sleep(0)
            case "pause":
                self.one.client.pause(what)
            case "lose" if not self._has_lost:
                self._has_lost = True
                self.one.lose()
                self.one.client.pause(False)
                await settle()

    async def end(self) -> None:
        self.one.client.pause(False)
        await settle()
        if not self.one.client.task.done():
            self.one.say(*((choice, LAST) for choice in self.said), finish_reason="length")
        await self.one.client.task


@given(events=st.lists(EVENT, max_size=60), n=st.integers(1, 3))
def test_whatever_happens_the_client_has_each_token_once_in_its_order(
    events: list[tuple[str, Any]], n: int
) -> None:
    async def scenario() -> None:
        course = Course(n)
        client = course.one.client
        await course.one.begin(*[LETTERS] * n)
        for event in events:
            if not course.is_over:
                await course.let(*event)
        await course.end()
        for choice, tokens in course.said.items():
            used, ends = expected(tokens)
            assert client.tokens(choice) == (used if ends else [*used, LAST])
            assert client.ends()[choice] == (ends or ["length"])
        assert client.generation.completion_tokens == sum(len(client.tokens(c)) for c in course.said)
        assert course.one.mesh.leftovers == []

    run(scenario)
