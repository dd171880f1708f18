"""A request's flow against a world in which workers die, drain, refuse and freeze at any moment."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import EngineError, InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.request_flow.flow import FlowRules, request_flow
from atomesh.mesh.request_flow.retry import MAX_LOSSES
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, PrefillLeg, Timings, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import Role
from atomesh.testing.flow_driver import FlowDriver

PROMPT = [3, 1, 4]
ROLES: list[Role] = ["prefill", "decode", "unified"]
LOSS, REFUSAL, BAD, BROKEN, FROZEN = "loss", "refusal", "bad", "broken", "frozen"
ERRORS = {
    REFUSAL: ServiceUnavailableError("draining"),
    BAD: InvalidRequestError("does not fit"),
    BROKEN: EngineError("no logits"),
}


def truth(choice: int, max_tokens: int) -> list[int]:
    """The right answer: each token follows from the history, one choice stops early."""
    history = [*PROMPT, choice]
    for _ in range(2 if choice == 1 else max_tokens):
        history.append(sum(history) % 97)
    return history[len(PROMPT) + 1 :][:max_tokens]


class World:
    """Answers each leg rightly from where it begins, one token a choice and step."""

    def __init__(self, driver: FlowDriver, n: int, max_tokens: int) -> None:
        self.driver = driver
        self.answers = {choice: truth(choice, max_tokens) for choice in range(n)}
        self.done: dict[object, dict[int, int]] = {}
        self.fates: Counter[str] = Counter()

    def step(self) -> None:
        leg = self.driver.leg
        is_first = leg not in self.done and isinstance(leg.leg, DecodeLeg)
        begins = self.done.setdefault(leg, self._begins(leg.leg))
        deltas = [self._delta(choice, at, is_first) for choice, at in begins.items()]
        for choice in list(begins):
            begins[choice] += 1
            if begins[choice] >= len(self.answers[choice]):
                del begins[choice]
        self.driver.arrive(*deltas)

    def _begins(self, leg: PrefillLeg | DecodeLeg | None) -> dict[int, int]:
        if not isinstance(leg, DecodeLeg):
            return dict.fromkeys(self.answers, 0)
        for choice, tokens in leg.outputs.items():
            assert tokens
            assert tokens == self.answers[choice][: len(tokens)]
        return {choice: len(tokens) for choice, tokens in leg.outputs.items()}

    def _delta(self, choice: int, at: int, is_first: bool) -> TokenDelta:
        answer = self.answers[choice]
        starts = choice == 0
        return TokenDelta(
            request_id=self.driver.leg.request.request_id,
            choice=choice,
            token_ids=answer[at : at + 1],
            finish_reason="length" if at + 1 >= len(answer) else None,
            cached_tokens=1 if starts else None,
            timings=Timings(0.0, 0.0) if starts else None,
            kv_source="transferred" if is_first else None,
        )

    def strike(self, fate: str) -> None:
        waiting = self.driver.waiting
        assert waiting is not None
        if fate == FROZEN:
            if waiting.source is None or waiting.source not in self.driver.open_legs:
                return self.step()
            self.fates[LOSS] += 1
            return self.driver.fail(leg=waiting.source)
        self.fates[fate] += 1
        return self.driver.fail(ERRORS.get(fate))


@given(
    roles=st.lists(st.sampled_from(ROLES), min_size=1, max_size=5),
    n=st.integers(1, 3),
    max_tokens=st.integers(1, 6),
    on_failure=st.sampled_from(["recompute", "fail"]),
    fates=st.lists(st.sampled_from([None, None, None, LOSS, REFUSAL, BAD, BROKEN, FROZEN]), max_size=30),
)
def test_never_a_wrong_token_never_a_leg_left_behind(
    roles: list[Role], n: int, max_tokens: int, on_failure: str, fates: list[str | None]
) -> None:
    names = [f"w{number}" for number in range(len(roles))]
    sampling = SamplingSpec(seed=1, max_tokens=max_tokens)
    request = GenerationRequest(request_id="r", prompt_token_ids=PROMPT, sampling=sampling, n=n)
    driver = FlowDriver(
        request_flow(request, FlowRules(on_failure)), list(names), dict(zip(names, roles, strict=True))
    )
    world = World(driver, n, max_tokens)
    driver.start()
    pending = list(fates)
    for _ in range(200):
        if driver.waiting is None:
            break
        fate = pending.pop(0) if pending else None
        if fate is None:
            world.step()
        else:
            world.strike(fate)
        check_what_the_client_has(driver, world)
    assert driver.waiting is None
    check_the_end(driver, world)


def check_what_the_client_has(driver: FlowDriver, world: World) -> None:
    for choice, answer in world.answers.items():
        tokens = driver.tokens(choice)
        assert tokens == answer[: len(tokens)]
    assert {delta.request_id for delta in driver.emitted} <= {"r"}


def check_the_end(driver: FlowDriver, world: World) -> None:
    """Complete, or an error that something accounts for; nothing twice, nobody asked again in vain."""
    finished = Counter(delta.choice for delta in driver.emitted if delta.finish_reason is not None)
    if driver.error is None:
        assert finished == Counter(world.answers.keys())
        assert all(driver.tokens(choice) == answer for choice, answer in world.answers.items())
        assert driver.open_legs == []
    else:
        assert world.fates
        assert all(count == 1 for count in finished.values())
    assert world.fates[LOSS] <= MAX_LOSSES
    assert world.fates[BROKEN] <= 1
    told = [delta for delta in driver.emitted if delta.cached_tokens is not None]
    assert len(told) == (1 if driver.emitted else 0)
    paths = [delta.serving_path for delta in driver.emitted if delta.serving_path is not None]
    assert all(first != second for first, second in pairwise(paths))
    sent = [(leg.worker.address, leg.request.request_id) for leg in driver.sent]
    assert len(set(sent)) == len(sent)
    assert len({ticket.request_id for ticket in driver.tickets}) == len(driver.tickets)


def test_a_flow_left_alone_ends_every_answer() -> None:
    for roles in (["unified"], ["prefill", "decode"], ["decode"], ["prefill"], ["unified", "unified"]):
        names = [f"w{number}" for number in range(len(roles))]
        sampling = SamplingSpec(seed=1, max_tokens=5)
        request = GenerationRequest(request_id="r", prompt_token_ids=PROMPT, sampling=sampling, n=3)
        driver = FlowDriver(request_flow(request, FlowRules()), names, dict(zip(names, roles, strict=True)))
        world = World(driver, 3, 5)
        driver.start()
        while driver.waiting is not None:
            world.step()
        check_the_end(driver, world)
        assert driver.error is None
