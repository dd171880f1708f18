"""What is due next in an answer's reasoning is the same for one worker and for two that share the answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.options import EngineOptions
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.reasoning import ReasoningSpec
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.handoff_pair import SECRET, HandoffPair, handoff_pair
from atomesh.testing.tiny_model import write_tiny_model

OPTIONS = EngineOptions(
    dtype="float32", kv_memory=2 * 2**20, max_model_len=512, max_num_batched_tokens=64, threads=1
)
OPEN, MORE, CLOSE, CLOSED = 301, 302, 303, 304
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandoffPair]:
    directory = tmp_path_factory.mktemp("kv")
    with handoff_pair(model, (f"unix:{directory}/p", f"unix:{directory}/d"), OPTIONS) as made:
        yield made


def alone(model: Path, request: GenerationRequest) -> list[TokenDelta]:
    engine = build_engine(
        open_checkpoint(model), OPTIONS, secret=SECRET, served_name="tiny", clock=MonotonicClock()
    )
    try:
        engine.add(request)
        deltas: list[TokenDelta] = []
        while engine.has_work():
            deltas += engine.step()
        return deltas
    finally:
        engine.close()


def spoken(deltas: list[TokenDelta], choice: int) -> list[int]:
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


@pytest.mark.parametrize(
    ("spec", "due"),
    [
        (ReasoningSpec(end=(CLOSE,), begins_inside=True, max_tokens=0), {0: CLOSE}),
        (ReasoningSpec(end=(CLOSE,), begins_inside=True, max_tokens=1), {1: CLOSE}),
        (ReasoningSpec(end=(CLOSE, CLOSED), begins_inside=True, max_tokens=0), {0: CLOSE, 1: CLOSED}),
        (
            ReasoningSpec(end=(CLOSE,), then=(OPEN, MORE), begins_inside=True, max_tokens=7),
            dict(zip(range(7, 10), (CLOSE, OPEN, MORE), strict=True)),
        ),
        (
            ReasoningSpec(start=(OPEN, MORE), end=(CLOSE,), is_required=True, max_tokens=5),
            {0: OPEN, 1: MORE, 7: CLOSE},
        ),
    ],
    ids=["at once", "after the first token", "across the border", "and then", "required"],
)
def test_each_token_that_is_due_comes_once_and_in_its_place(
    pair: HandoffPair, model: Path, spec: ReasoningSpec, due: dict[int, int]
) -> None:
    sampling = SamplingSpec(seed=11, max_tokens=LENGTH, temperature=1.0, reasoning=spec)
    prompt = [3 + (7 * position) % 200 for position in range(70)]
    request = GenerationRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling, n=2)
    apart, together = pair.answer(request), alone(model, request)
    assert {delta.kv_source for delta in apart if delta.kv_source is not None} == {"transferred"}
    for choice in range(2):
        answer = spoken(apart, choice)
        assert len(answer) == LENGTH
        assert answer == spoken(together, choice)
        assert {place: answer[place] for place in due} == due
        assert [place for place, token in enumerate(answer) if token == CLOSE] == [
            place for place, token in due.items() if token == CLOSE
        ]
