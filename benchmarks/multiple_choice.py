"""Multiple choice by log-likelihood: the choice that a model finds likeliest after the question is its pick.

Asked as evaluation suites ask a server: the tokens of question and choice as one prompt, echoed with logprobs
and one token more, all choices of a question in one request.
"""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from atomesh.testing.reference_model import all_logits_together

QUESTIONS = Path(__file__).with_name("multiple_choice.jsonl")
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Api:
    """A server's, at `url` without a path."""

    url: str
    model: str

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Raises urllib.error.HTTPError for a refusal."""
        asked = urllib.request.Request(  # noqa: S310  the operator's own URL
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310
            return json.load(answer)


class Question(msgspec.Struct, frozen=True):
    """`choices` go on directly where `context` ends; `answer` is the place of the right one."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One choice with its question before it; the choice's tokens begin at `start`."""

    token_ids: list[int]
    start: int


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of a choice's tokens, given what is before them.

    `total` is the sum of natural logarithms; greedy where each was the likeliest of the vocabulary.
    """

    total: float
    is_greedy: bool


@dataclass(frozen=True, slots=True)
class Score:
    """`likelihoods[question][choice]`."""

    likelihoods: list[list[Likelihood]]

    @property
    def picks(self) -> list[int]:
        totals = [[one.total for one in row] for row in self.likelihoods]
        return [row.index(max(row)) for row in totals]

    def count_right(self, questions: Sequence[Question]) -> int:
        return sum(pick == one.answer for pick, one in zip(self.picks, questions, strict=True))

    def largest_difference(self, other: "Score") -> float:
        """Of two sums for the same choice."""
        pairs = zip(self._flat(), other._flat(), strict=True)
        return max(abs(ours.total - theirs.total) for ours, theirs in pairs)

    def count_other_flags(self, other: "Score") -> int:
        """Choices that only one of the two finds greedy."""
        pairs = zip(self._flat(), other._flat(), strict=True)
        return sum(ours.is_greedy != theirs.is_greedy for ours, theirs in pairs)

    def _flat(self) -> list[Likelihood]:
        return [one for row in self.likelihoods for one in row]


def read_questions(path: Path = QUESTIONS) -> list[Question]:
    return [msgspec.json.decode(line, type=Question) for line in path.read_bytes().splitlines()]


def encode_question(api: Api, question: Question) -> list[Candidate]:
    """By the server's own tokenizer. A choice's tokens are those that the question alone does not have."""
    start = len(_tokenize(api, question.context))
    return [Candidate(_tokenize(api, question.context + choice), start) for choice in question.choices]


def ask_server(api: Api, candidates: Sequence[Sequence[Candidate]]) -> Score:
    """One request a question."""
    return Score([_ask_row(api, row) for row in candidates])


def ask_reference(model: Any, candidates: Sequence[Sequence[Candidate]]) -> Score:
    """transformers' own computation of the same (`model` as `load_reference` gives it)."""
    scored = []
    for row in candidates:
        logits = all_logits_together(model, [one.token_ids for one in row])
        scored.append([_compute(each, one) for each, one in zip(logits, row, strict=True)])
    return Score(scored)


def echo_request(model: str, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What lm-eval's local-completions sends (0.4.13), field by field."""
    return {
        "model": model,
        "prompt": [list(prompt) for prompt in prompts],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }


def read_likelihood(logprobs: Mapping[str, Any], start: int) -> Likelihood:
    """From a choice's `logprobs`, whose last entry is of the token that was generated."""
    told = logprobs["token_logprobs"][start:-1]
    best = [max(top.values()) for top in logprobs["top_logprobs"][start:-1]]
    return Likelihood(sum(told), told == best)


def _tokenize(api: Api, text: str) -> list[int]:
    tokens: list[int] = api.post("/tokenize", {"model": api.model, "prompt": text})["tokens"]
    return tokens


def _ask_row(api: Api, row: Sequence[Candidate]) -> list[Likelihood]:
    body = echo_request(api.model, [one.token_ids for one in row])
    answer = api.post("/v1/completions", body)
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    return [read_likelihood(choice["logprobs"], one.start) for choice, one in zip(choices, row, strict=True)]


def _compute(logits: torch.Tensor, candidate: Candidate) -> Likelihood:
    """`logits` [tokens, vocabulary]: what follows each of the candidate's tokens."""
    foreseen = logits[candidate.start - 1 : -1]
    targets = torch.tensor(candidate.token_ids[candidate.start :])
    told = foreseen.log_softmax(-1).gather(1, targets[:, None])
    return Likelihood(float(told.double().sum()), bool((foreseen.argmax(-1) == targets).all()))
