"""FAULTS A1 and A3: prefill and decode apart give U's answers: ids, finish reason, usage."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for

BLOCK = 32
CONTEXT = 1024
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, CONTEXT - 1]
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 1.0, "seed": 11, "top_p": 0.95}
AT_ONCE = 8

Ask = tuple[list[int], dict[str, Any]]


def many_asks() -> Iterator[Ask]:
    """Cold, warm and sharing a prefix; greedy and seeded; 216 of them."""
    rng = random.Random(2)
    for sampling in (GREEDY, SEEDED):
        for length in LENGTHS:
            for max_tokens in (2, 9):
                base = fresh_prompt(length)
                for _ in range(2):
                    yield base, {**sampling, "max_tokens": max_tokens}
        for _ in range(20):
            prefix = fresh_prompt(rng.randrange(1, 300))
            for _ in range(4):
                yield prefix + fresh_prompt(rng.randrange(1, 120)), {**sampling, "max_tokens": 12}


def test_a1_two_hundred_prompts_are_answered_as_by_one_worker(apart: PDBench, reference: PDBench) -> None:
    asks = list(many_asks())
    assert len(asks) >= 200

    def ask(bench: PDBench, prompt: list[int], fields: dict[str, Any]) -> Outcome:
        return bench.client.stream(prompt, **fields).finish()

    before = received(apart)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(lambda one: ask(apart, *one), asks))
        wanted = list(threads.map(lambda one: ask(reference, *one), asks))
    assert answers == wanted
    assert {answer.status for answer in answers} == {200}
    moved = received(apart) - before
    assert moved["received_committed"] >= 150
    assert set(moved) <= {"received_committed", "received_withdrawn"}


def received(bench: PDBench) -> Counter[str]:
    """What became of hand-offs on decode's side."""
    outcomes = bench.worker("decode")["load"]["kv_transfers"]
    return Counter(
        {outcome: number for outcome, number in outcomes.items() if outcome.startswith("received")}
    )


def test_a1_what_differs_from_turn_to_turn_is_only_what_decode_holds(
    apart: PDBench, reference: PDBench
) -> None:
    """A conversation: each turn's prompt is all that was said before."""
    ours, theirs = fresh_prompt(70), []
    theirs = list(ours)
    for turn in range(4):
        fields = {"max_tokens": 40, "temperature": 1.0, "seed": turn, "ignore_eos": True}
        answer, wanted = apart.client.complete(ours, **fields), reference.client.complete(theirs, **fields)
        assert answer == wanted
        ours += [*answer.tokens, *(addition := fresh_prompt(15))]
        theirs += [*wanted.tokens, *addition]


@pytest.mark.parametrize(
    "chosen", [{"n": 3}, {"logprobs": 2}, {"presence_penalty": 1.5}, {"stop": ["e", "0"]}]
)
def test_a1_whatever_is_asked_for(apart: PDBench, reference: PDBench, chosen: dict[str, Any]) -> None:
    for sampling in (SEEDED, GREEDY if "n" not in chosen else SEEDED):
        prompt = fresh_prompt(2 * BLOCK + 9)
        fields = {**sampling, **chosen, "max_tokens": 20}
        answer, wanted = apart.client.complete(prompt, **fields), reference.client.complete(prompt, **fields)
        assert [one.token_ids for one in answer.choices] == [one.token_ids for one in wanted.choices]
        assert [one.text for one in answer.choices] == [one.text for one in wanted.choices]
        assert [one.finish_reason for one in answer.choices] == [one.finish_reason for one in wanted.choices]


def test_a3_blocks_of_an_aborted_transfer_are_not_written_after_their_next_owner(
    apart: PDBench, reference: PDBench
) -> None:
    """Pushes come late; meanwhile the aborted request's blocks are asked for by others."""
    for _ in range(5):
        apart.arm("prefill", "kv_delay_push", 3, 0.3)
        leaver = apart.client.stream(fresh_prompt(900), max_tokens=50, ignore_eos=True)
        assert len(leaver.next_tokens()) == 1  # prefill is done, and its KV is on the way
        leaver.close()
        prompts = [fresh_prompt(700) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda prompt: apart.client.complete(prompt, max_tokens=16), prompts))
        assert answers == [reference.client.complete(prompt, max_tokens=16) for prompt in prompts]
        assert {answer.status for answer in answers} == {200}
        assert wait_for(apart.is_idle) < 5.0
