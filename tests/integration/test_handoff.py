"""Two real workers in one process say what one worker alone would say."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.engine import Engine
from atomesh.engine.options import EngineOptions
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.handoff_pair import SECRET, HandoffPair, HandoffWorker, handoff_pair
from atomesh.testing.served_process import wait_for
from atomesh.testing.tiny_model import write_tiny_model

BLOCK = 32
MAX_LEN = 512
OPTIONS = EngineOptions(
    dtype="float32", kv_memory=2 * 2**20, max_model_len=MAX_LEN, max_num_batched_tokens=64, threads=1
)
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, MAX_LEN - 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@dataclass
class Alone:
    """One worker that does both, as the measure of all."""

    engine: Engine

    def answer(self, request: GenerationRequest) -> list[TokenDelta]:
        self.engine.add(request)
        deltas: list[TokenDelta] = []
        while self.engine.has_work():
            deltas += self.engine.step()
        return deltas


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Alone]:
    engine = build_engine(
        open_checkpoint(model), OPTIONS, secret=SECRET, served_name="tiny", clock=MonotonicClock()
    )
    yield Alone(engine)
    engine.close()


@pytest.fixture(scope="module", params=["shm", "tcp"])
def running(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("kv")
    listen = (
        (f"unix:{directory}/p", f"unix:{directory}/d")
        if request.param == "shm"
        else ("127.0.0.1:0", "127.0.0.1:0")
    )
    with handoff_pair(model, listen, OPTIONS) as pair:
        yield pair


@pytest.fixture
def pair(running: HandoffPair) -> Iterator[HandoffPair]:
    """As new before and after each test: no block with anybody, no prefix kept."""
    for worker in (running.prefill, running.decode):
        worker.loop.reset_prefix_cache()
    yield running
    for worker in (running.prefill, running.decode):
        wait_for(worker.is_idle)
        assert worker.inspect().states["held"] == 0


def request_of(prompt: list[int], request_id: str = "r", n: int = 1, **sampling: object) -> GenerationRequest:
    spec = SamplingSpec(**{"seed": 7, "max_tokens": 12, "temperature": 0.0, **sampling})
    return GenerationRequest(request_id=request_id, prompt_token_ids=prompt, sampling=spec, n=n)


def prompt_of(length: int, start: int = 3) -> list[int]:
    return [3 + (start + 7 * position) % 200 for position in range(length)]


def spoken(deltas: list[TokenDelta]) -> dict[int, tuple[list[int], str | None]]:
    """Tokens and ending of each choice."""
    assert [delta.error for delta in deltas if delta.error is not None] == []
    answers: dict[int, tuple[list[int], str | None]] = {}
    for delta in deltas:
        tokens, ending = answers.get(delta.choice, ([], None))
        answers[delta.choice] = (tokens + delta.token_ids, delta.finish_reason or ending)
    return answers


def transferred(deltas: list[TokenDelta]) -> set[str]:
    return {delta.kv_source for delta in deltas if delta.kv_source is not None}


@pytest.mark.parametrize("length", LENGTHS)
def test_two_workers_say_what_one_says(pair: HandoffPair, alone: Alone, length: int) -> None:
    request = request_of(prompt_of(length))
    deltas = pair.answer(request)
    assert spoken(deltas) == spoken(alone.answer(request))
    assert transferred(deltas) == ({"transferred"} if length < MAX_LEN - 1 else set())


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.8, "top_p": 0.9, "seed": 4, "repetition_penalty": 1.3},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    ],
    ids=["seeded", "penalised", "greedy and penalised"],
)
def test_chance_and_penalties_go_on_across_the_border(
    pair: HandoffPair, alone: Alone, sampling: dict[str, object]
) -> None:
    request = request_of(prompt_of(70), **sampling)
    assert spoken(pair.answer(request)) == spoken(alone.answer(request))


def test_what_is_cached_is_shared_and_not_sent_again(pair: HandoffPair, alone: Alone) -> None:
    first, longer = request_of(prompt_of(3 * BLOCK), "a"), request_of(prompt_of(5 * BLOCK + 3), "b")
    for request in (first, longer, longer):
        assert spoken(pair.answer(request)) == spoken(alone.answer(request))
    _, deltas = pair.start(longer)
    assert deltas[0].cached_tokens == 5 * BLOCK
    pair.prefill.loop.abort(pair.prefill.mailbox, "b")


def test_choices_share_what_was_handed_over(pair: HandoffPair, alone: Alone) -> None:
    request = request_of(prompt_of(75), n=3, temperature=1.0)
    before = pair.prefill.loop.load.prompt_tokens
    assert spoken(pair.answer(request)) == spoken(alone.answer(request))
    assert pair.prefill.loop.load.prompt_tokens - before == 75


def test_log_probabilities_are_complete(pair: HandoffPair, alone: Alone) -> None:
    request = request_of(prompt_of(50), logprobs=2)
    ours, theirs = pair.answer(request), alone.answer(request)
    ours_flat = [entry for delta in ours for entry in delta.logprobs or []]
    theirs_flat = [entry for delta in theirs for entry in delta.logprobs or []]
    assert [entry.token_id for entry in ours_flat] == [entry.token_id for entry in theirs_flat]
    assert [entry.logprob for entry in ours_flat] == pytest.approx(
        [entry.logprob for entry in theirs_flat], abs=1e-4
    )


def test_one_token_never_touches_decode(pair: HandoffPair, alone: Alone) -> None:
    request = request_of(prompt_of(40), max_tokens=1)
    steps = pair.decode.loop.load.steps
    deltas = pair.answer(request)
    assert spoken(deltas) == spoken(alone.answer(request))
    assert deltas[-1].finish_reason == "length"
    wait_for(pair.decode.is_idle)
    assert pair.decode.loop.load.steps == steps


@pytest.mark.parametrize(
    ("worker", "point", "source"),
    [
        ("prefill", "kv_drop_push", "recomputed"),
        ("prefill", "kv_partial_push", "recomputed"),
        ("prefill", "kv_drop_commit", "recomputed"),
        ("decode", "kv_refuse_reserve", "transferred"),  # pulled, once decode's turn has come
    ],
)
def test_what_goes_wrong_on_purpose_changes_no_answer(
    pair: HandoffPair, alone: Alone, worker: str, point: str, source: str
) -> None:
    broken: HandoffWorker = getattr(pair, worker)
    broken.faults.arm(point)
    request = request_of(prompt_of(90))
    deltas = pair.answer(request)
    assert spoken(deltas) == spoken(alone.answer(request))
    assert transferred(deltas) == {source}
    assert broken.faults.take(point) is None


def test_a_failed_transfer_is_an_error_where_that_is_asked_for(pair: HandoffPair) -> None:
    pair.prefill.faults.arm("kv_drop_commit")
    request = request_of(prompt_of(90))
    ticket, first = pair.start(request)
    [failed] = pair.go_on(request, ticket, first, on_failure="fail")
    assert failed.error is not None
    assert (failed.finish_reason, failed.error.kind) == ("error", "EngineError")


def test_an_abort_between_the_legs_frees_both_at_once(pair: HandoffPair) -> None:
    pair.start(request_of(prompt_of(200), "gone"))
    pair.prefill.loop.abort(pair.prefill.mailbox, "gone")
    assert wait_for(lambda: pair.prefill.is_idle() and pair.decode.is_idle()) < 1.0


def test_an_abort_after_the_transfer_still_reaches_decode(pair: HandoffPair) -> None:
    pair.start(request_of(prompt_of(200), "gone"))
    wait_for(lambda: pair.prefill.is_idle() and pair.decode.inspect().states["reserved"] == 0)
    assert not pair.decode.is_idle()
    pair.prefill.loop.abort(pair.prefill.mailbox, "gone")
    assert wait_for(pair.decode.is_idle) < 1.0


def test_an_abort_at_decode_alone_frees_it_before_its_leg_has_come(pair: HandoffPair) -> None:
    ticket, first = pair.start(request_of(prompt_of(200), "gone"))
    wait_for(lambda: pair.prefill.is_idle() and pair.decode.inspect().owners != {})
    pair.decode.loop.abort(pair.decode.mailbox, "gone")
    assert wait_for(lambda: pair.prefill.is_idle() and pair.decode.is_idle()) < 1.0
    late = pair.go_on(request_of(prompt_of(200), "late"), ticket, first)
    assert transferred(late) == {"recomputed"}


def test_a_gateway_that_goes_between_the_legs_frees_both_at_once(pair: HandoffPair) -> None:
    pair.start(request_of(prompt_of(200), "gone"))
    pair.prefill.loop.drop(pair.prefill.mailbox)
    assert wait_for(lambda: pair.prefill.is_idle() and pair.decode.is_idle()) < 1.0
