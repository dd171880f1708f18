"""Log-likelihood evaluation through the API, on both shapes, against transformers' own forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import multiple_choice
import pytest
import torch
from multiple_choice import Api, Candidate, Question, Score

from atomesh.testing.reference_model import all_logits, load_reference
from atomesh.testing.wire import Wire

LOGPROB_ERROR = 1e-4
SUM_ERROR = 1e-3
LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
TEXTS = {
    "short": "The capital of France is Paris.",
    "characters of several bytes": "Größe: 5 µm, 数学 is fun, naïve café — 🚀🚀",
    "several chunks of a prompt": LICENSE[1000:4800],
    "one token": "a",
}


@pytest.fixture(scope="session")
def reference(default_model: Path) -> Any:
    return load_reference(default_model)


@pytest.fixture(scope="session")
def expected(reference: Any) -> dict[str, torch.Tensor]:
    """Known texts' log-probabilities, [tokens, vocabulary]; filled as they are asked for."""
    return {}


@pytest.mark.parametrize("name", TEXTS)
def test_echoed_logprobs_are_transformers_own(
    stack: Wire, reference: Any, expected: dict[str, torch.Tensor], name: str
) -> None:
    api = Api(stack.url, stack.model)
    ids = api.post("/tokenize", {"prompt": TEXTS[name]})["tokens"]
    if name not in expected:
        expected[name] = all_logits(reference, ids).log_softmax(-1)
    logprobs = echo(api, ids)
    assert len(logprobs["token_logprobs"]) == len(ids) + 1
    assert logprobs["token_logprobs"][0] is None

    foreseen, targets = expected[name][:-1], torch.tensor(ids[1:])
    theirs = foreseen.gather(1, targets[:, None])[:, 0].tolist()
    ours = logprobs["token_logprobs"][1:-1]
    assert ours == pytest.approx(theirs, abs=LOGPROB_ERROR)
    assert greedy_flags(logprobs)[:-1] == (foreseen.argmax(-1) == targets).tolist()
    assert greedy_flags(logprobs)[-1]
    assert logprobs["token_logprobs"][-1] == pytest.approx(float(expected[name][-1].max()), abs=LOGPROB_ERROR)


def echo(api: Api, ids: list[int]) -> dict[str, Any]:
    answer = api.post("/v1/completions", multiple_choice.echo_request(api.model, [ids]))
    logprobs: dict[str, Any] = answer["choices"][0]["logprobs"]
    return logprobs


def greedy_flags(logprobs: dict[str, Any]) -> list[bool]:
    """As evaluation suites find them: by exact equality of two numbers."""
    pairs = zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
    return [own == max(top.values()) for own, top in pairs]


def test_a_prefix_that_is_cached_changes_no_logprob(stack: Wire) -> None:
    api = Api(stack.url, stack.model)
    ids = api.post("/tokenize", {"prompt": LICENSE[5000:6500]})["tokens"]
    api.post("/v1/completions", {"model": api.model, "prompt": ids, "max_tokens": 1})
    first, again = echo(api, ids), echo(api, ids)
    assert first["token_logprobs"][1:] == pytest.approx(again["token_logprobs"][1:], abs=2e-5)
    assert len(first["token_logprobs"]) == len(ids) + 1


@pytest.fixture(scope="session")
def questions() -> list[Question]:
    return multiple_choice.read_questions()


@pytest.fixture(scope="session")
def candidates(questions: Sequence[Question], default_server: Any) -> list[list[Candidate]]:
    api = Api(default_server.url, default_server.model)
    return [multiple_choice.encode_question(api, question) for question in questions]


@pytest.fixture(scope="session")
def judged(candidates: list[list[Candidate]], reference: Any) -> Score:
    return multiple_choice.ask_reference(reference, candidates)


def test_a_multiple_choice_task_is_scored_as_transformers_does(
    stack: Wire, questions: list[Question], candidates: list[list[Candidate]], judged: Score
) -> None:
    score = multiple_choice.ask_server(Api(stack.url, stack.model), candidates)
    assert len(questions) >= 30
    assert all(len(question.choices) == 4 for question in questions)
    assert score.picks == judged.picks
    assert score.count_other_flags(judged) == 0
    assert score.largest_difference(judged) <= SUM_ERROR
    assert score.count_right(questions) >= 30


def test_right_answers_are_not_all_in_one_place(questions: list[Question]) -> None:
    places = [question.answer for question in questions]
    assert {place: places.count(place) for place in range(4)} == {0: 9, 1: 9, 2: 9, 3: 9}
