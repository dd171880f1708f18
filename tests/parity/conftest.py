"""An engine's greedy run and the logits it chose from, and transformers' judgement of both."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from atomesh.clock import MonotonicClock
from atomesh.engine.build import build_engine
from atomesh.engine.core.batch import SampledToken
from atomesh.engine.execution import local_executor
from atomesh.engine.options import EngineOptions
from atomesh.engine.sampling.sampler import Sampler, SampleRow
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

SECRET = b"parity" * 6
TIE = 1e-5  # of the largest logit: closer than that, either token is right
LOGIT_ERROR = 1e-4  # of the largest logit

ReferenceLogits = Callable[[Sequence[int], Sequence[int]], torch.Tensor]


@dataclass
class Answer:
    """`logits[i]` is the row that `token_ids[i]` was chosen from."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    cached_tokens: int = 0


class Recorder(Sampler):
    """The real sampler, which also keeps a copy of each row, by prompt and output index."""

    rows: dict[tuple[tuple[int, ...], int], torch.Tensor]

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[SampledToken | None]:
        for row in rows:
            Recorder.rows[tuple(row.prompt_token_ids), len(row.output_token_ids)] = logits[
                row.logits_row
            ].clone()
        return super().sample(logits, rows)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from two, and lose much where they wait for a busy core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Recorder]]:
    monkeypatch.setattr(local_executor, "Sampler", Recorder)
    Recorder.rows = {}
    yield Recorder
    Recorder.rows = {}


class GreedyRun:
    """One engine; each call runs a set of distinct prompts together to their end."""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        self.engine = build_engine(
            open_checkpoint(path), options, secret=SECRET, served_name="parity", clock=MonotonicClock()
        )

    def __call__(self, prompts: Sequence[list[int]], max_tokens: int) -> list[Answer]:
        answers = {str(index): Answer(prompt) for index, prompt in enumerate(prompts)}
        sampling = SamplingSpec(seed=0, max_tokens=max_tokens, temperature=0.0)
        for request_id, answer in answers.items():
            self.engine.add(
                GenerationRequest(request_id=request_id, prompt_token_ids=answer.prompt, sampling=sampling)
            )
        while self.engine.has_work():
            for delta in self.engine.step():
                assert delta.error is None
                answers[delta.request_id].token_ids += delta.token_ids
                answers[delta.request_id].cached_tokens += delta.cached_tokens or 0
        self.engine.check_invariants()
        for answer in answers.values():
            assert len(answer.token_ids) == max_tokens
            answer.logits = [Recorder.rows[tuple(answer.prompt), index] for index in range(max_tokens)]
        return list(answers.values())


@pytest.fixture
def greedy_run(recorder: type[Recorder]) -> Iterator[Callable[[Path, EngineOptions], GreedyRun]]:
    runs: list[GreedyRun] = []

    def make(path: Path, options: EngineOptions) -> GreedyRun:
        runs.append(GreedyRun(path, options))
        return runs[-1]

    yield make
    for run in runs:
        run.engine.close()


@pytest.fixture(scope="session")
def check_greedy() -> Callable[[Answer, torch.Tensor], None]:
    return assert_greedy


def assert_greedy(answer: Answer, expected: torch.Tensor) -> None:
    """`expected` [tokens, vocabulary]: transformers' logits for each of the answer's tokens."""
    ours = torch.stack(answer.logits)
    largest = expected.abs().amax(-1)
    assert ((ours - expected).abs().amax(-1) <= LOGIT_ERROR * largest).all()
    chosen = expected.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    best = expected.amax(-1)
    assert (best - chosen <= TIE * largest).all()
