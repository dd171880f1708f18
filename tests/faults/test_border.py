"""FAULTS B: no client can tell where prefill ended and decode went on."""

from typing import Any

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench

BLOCK = 32


def both(bench: PDBench, reference: PDBench, prompt: list[int] | str, **fields: Any) -> Outcome:
    """The bench's answer, the same streamed and not as the reference's."""
    wanted = reference.client.complete(prompt, **fields)
    assert bench.client.complete(prompt, **fields) == wanted
    assert bench.client.stream(prompt, **fields).finish() == wanted
    return wanted


def generated(bench: PDBench, role: str) -> int:
    tokens: int = bench.worker(role)["load"]["generation_tokens"]
    return tokens


def test_b1_one_token_is_one_token_and_decode_is_not_asked(bench: PDBench, reference: PDBench) -> None:
    before = [generated(bench, "decode"), bench.worker("decode")["load"]["steps"]]
    answer = both(bench, reference, fresh_prompt(100), max_tokens=1)
    assert (len(answer.tokens), answer.completion_tokens) == (1, 1)
    assert answer.choices[0].finish_reason == "length"
    if bench.shape.is_apart:
        assert [generated(bench, "decode"), bench.worker("decode")["load"]["steps"]] == before


def test_b1_a_stop_as_first_token_ends_after_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(70)
    [first] = reference.client.complete(prompt, max_tokens=1).tokens
    steps = bench.worker("decode")["load"]["steps"]
    answer = both(bench, reference, prompt, stop_token_ids=[first])
    assert (answer.tokens, answer.choices[0].finish_reason) == ((first,), "stop")
    if bench.shape.is_apart:
        assert bench.worker("decode")["load"]["steps"] == steps


def test_b2_min_tokens_counts_the_first_token(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(40)
    first, second = reference.client.complete(prompt, max_tokens=2, ignore_eos=True).tokens
    assert first != second
    fields = {"max_tokens": 12, "stop_token_ids": [second], "ignore_eos": True}
    assert both(bench, reference, prompt, min_tokens=1, **fields).tokens == (first, second)
    longer = both(bench, reference, prompt, min_tokens=2, **fields).tokens
    assert longer[0] == first
    assert longer[1] != second


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_b3_branches_share_one_prefill(bench: PDBench, reference: PDBench, length: int) -> None:
    prompt = fresh_prompt(length)
    fields = {"n": 4, "temperature": 1.0, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    wanted = reference.client.complete(prompt, **fields)
    before = bench.worker("prefill")["load"]["prompt_tokens"]
    answer = bench.client.stream(prompt, **fields).finish()
    assert answer == wanted
    assert len({choice.token_ids for choice in answer.choices}) == 4
    assert (answer.prompt_tokens, answer.completion_tokens) == (length, 48)
    if bench is not reference:
        assert bench.worker("prefill")["load"]["prompt_tokens"] - before == length


def test_b3_leaving_midway_frees_all_branches(bench: PDBench) -> None:
    stream = bench.client.stream(fresh_prompt(200), n=4, temperature=1.0, max_tokens=700, ignore_eos=True)
    for _ in range(8):
        stream.next_tokens()
    stream.close()
    assert bench.settle() < 5.0


def test_b4_logprobs_are_complete_the_first_from_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(50)
    fields = {"logprobs": 3, "max_tokens": 6, "ignore_eos": True}
    wanted = reference.client.complete(prompt, **fields)
    for answer in (bench.client.complete(prompt, **fields), bench.client.stream(prompt, **fields).finish()):
        assert answer.tokens == wanted.tokens
        assert len(answer.choices[0].logprobs) == 6
        assert answer.choices[0].logprobs == pytest.approx(wanted.choices[0].logprobs, abs=1e-4)


def test_b4_text_joins_across_the_border(bench: PDBench, reference: PDBench) -> None:
    """Random bytes: most answers begin or end in the middle of a character."""
    for seed in range(12):
        answer = both(bench, reference, fresh_prompt(20), temperature=1.5, seed=seed, ignore_eos=True)
        assert answer.choices[0].text


def test_b4_a_stop_string_spans_the_border(bench: PDBench, reference: PDBench) -> None:
    prompt = "bread and the sea and "
    whole = reference.client.complete(prompt, max_tokens=12, ignore_eos=True).choices[0].text
    for width in (2, 3, 5):
        stop = whole[:width]
        answer = both(bench, reference, prompt, max_tokens=12, stop=[stop], ignore_eos=True)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")


def test_b5_the_prompts_logprobs_come_from_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(2 * BLOCK + 3)
    fields = {"echo": True, "logprobs": 1, "max_tokens": 3, "ignore_eos": True}
    wanted = reference.client.complete(prompt, **fields)
    answer = bench.client.complete(prompt, **fields)
    assert answer.tokens == wanted.tokens
    assert answer.choices[0].text == wanted.choices[0].text
    assert len(answer.choices[0].logprobs) == len(prompt) - 1 + 3
    assert answer.choices[0].logprobs == pytest.approx(wanted.choices[0].logprobs, abs=1e-4)


@pytest.mark.parametrize("length", [BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_b6_cached_tokens_are_whole_blocks_short_of_the_last_token(bench: PDBench, length: int) -> None:
    prompt = fresh_prompt(length)
    cold, warm = (bench.client.complete(prompt).cached_tokens for _ in range(2))
    streamed = bench.client.stream(prompt).finish().cached_tokens
    assert (cold, warm, streamed) == (0, *[(length - 1) // BLOCK * BLOCK] * 2)


def test_penalties_see_the_first_token_too(bench: PDBench, reference: PDBench) -> None:
    fields = {"presence_penalty": 2.0, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "max_tokens": 24}
    both(bench, reference, fresh_prompt(45), **fields)
    both(bench, reference, fresh_prompt(45), temperature=1.0, seed=3, top_p=0.9, **fields)
