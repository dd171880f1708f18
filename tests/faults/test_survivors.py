"""FAULTS D1, with two workers of each role: whenever a decode worker dies, the answer is U's."""

import itertools
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from atomesh.testing.completion_client import LOGPROB_TOLERANCE, Outcome
from atomesh.testing.dying_decode import decoders_at_work, killed_at
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for

RESTART_S = 60.0
AT_ONCE = 8
LENGTH = 60
CASES = list(itertools.product((0, 1, 7, 50), ("greedy", "seeded", "two")))
SAMPLED = {(0, "seeded"), (1, "two"), (7, "greedy"), (50, "two")}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 77},
    "two": {"temperature": 0.9, "seed": 78, "n": 2},
}


def fields_of(kind: str) -> dict[str, Any]:
    return {"max_tokens": LENGTH, "ignore_eos": True, "logprobs": 2, **KINDS[kind]}


def without_logprobs(answer: Outcome) -> Outcome:
    return replace(answer, choices=tuple(replace(one, logprobs=()) for one in answer.choices))


def is_same(answer: Outcome, wanted: Outcome) -> bool:
    """All of it, logprobs up to what one worker's own differ by."""
    pairs = zip(answer.choices, wanted.choices, strict=True)
    return without_logprobs(answer) == without_logprobs(wanted) and all(
        one.logprobs == pytest.approx(other.logprobs, abs=LOGPROB_TOLERANCE, rel=0) for one, other in pairs
    )


def assert_same(answer: Outcome, wanted: Outcome) -> None:
    assert is_same(answer, wanted), (answer, wanted)


@pytest.mark.parametrize(
    ("at", "kind"),
    [pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.soak) for case in CASES],
)
def test_d1_a_death_of_decode_is_not_seen(pairs: PDBench, reference: PDBench, at: int, kind: str) -> None:
    prompt, fields = fresh_prompt(200), fields_of(kind)
    wanted = reference.client.complete(prompt, **fields)
    moves = pairs.metric("atomesh_migrations_total")
    answer = killed_at(pairs, prompt, at, fields)
    assert_same(answer, wanted)
    assert (answer.status, answer.ended_well) == (200, True)
    assert answer.completion_tokens == LENGTH * fields.get("n", 1)
    assert pairs.metric("atomesh_migrations_total") - moves == 1


def test_d1_logprobs_differ_no_more_than_one_workers_own(reference: PDBench) -> None:
    """Alone, then among others that share its steps, then with its prefix in the cache."""
    prompts = [fresh_prompt(200) for _ in range(AT_ONCE)]
    fields = fields_of("seeded")
    alone = [reference.client.complete(prompt, **fields) for prompt in prompts[:2]]
    assert reference.admin("POST", "/reset_prefix_cache").status == 200
    with ThreadPoolExecutor(AT_ONCE) as threads:
        among = list(threads.map(lambda one: reference.client.complete(one, **fields), prompts))
    again = [reference.client.complete(prompt, **fields) for prompt in prompts[:2]]
    for answers in (among[:2], again):
        for answer, wanted in zip(answers, alone, strict=True):
            assert_same(answer, wanted)
            assert len(answer.choices[0].logprobs) == LENGTH


class Load:
    """So many requests, a few at once; `wanted` are U's answers to the same."""

    def __init__(self, reference: PDBench, kinds: Iterator[str]) -> None:
        self._cases = [(fresh_prompt(60), {**fields_of(next(kinds)), "max_tokens": 16}) for _ in range(12)]
        self._wanted = [reference.client.complete(prompt, **fields) for prompt, fields in self._cases]

    def run(self, bench: PDBench, count: int, disturb: Callable[[list["Future[Outcome]"]], None]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            chosen = [number % len(self._cases) for number in range(count)]
            asked = [
                threads.submit(bench.client.complete, self._cases[one][0], **self._cases[one][1])
                for one in chosen
            ]
            disturb(asked)
            answers = [one.result() for one in asked]
        wrong = [
            answer.message or answer.status
            for answer, one in zip(answers, chosen, strict=True)
            if not is_same(answer, self._wanted[one])
        ]
        assert wrong == []


def done(asked: list["Future[Outcome]"]) -> int:
    return sum(one.done() for one in asked)


@pytest.mark.parametrize("count", [120, pytest.param(1000, marks=pytest.mark.soak)])
def test_d1_one_of_two_dies_under_load_and_no_request_fails(
    pairs: PDBench, reference: PDBench, count: int
) -> None:
    def disturb(asked: list["Future[Outcome]"]) -> None:
        wait_for(lambda: done(asked) >= count // 3)
        wait_for(lambda: bool(decoders_at_work(pairs)))
        pairs.end(decoders_at_work(pairs)[0])

    Load(reference, itertools.cycle(KINDS)).run(pairs, count, disturb)


@pytest.mark.soak
def test_d1_every_worker_is_restarted_under_load_and_no_request_fails(
    pairs: PDBench, reference: PDBench
) -> None:
    def disturb(asked: list["Future[Outcome]"]) -> None:
        for before in pairs.workers():
            pairs.end(before, signal.SIGTERM)
            wait_for(lambda before=before: is_back(pairs, before), RESTART_S)
        assert done(asked) < len(asked)

    Load(reference, itertools.cycle(KINDS)).run(pairs, 6000, disturb)


def is_back(bench: PDBench, before: dict[str, Any]) -> bool:
    now = {worker["id"]: worker for worker in bench.workers()}[before["id"]]
    return bool(now["state"] == "ready" and now["incarnation"] != before["incarnation"])
