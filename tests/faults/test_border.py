"""FAULTS B: no client can tell where prefill ended and decode went on."""

from typing import Any

import pytest

from atomesh.testing.completion_client import LOGPROB_TOLERANCE, Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for

BLOCK = 32


def answers(bench: PDBench, prompt: list[int] | str, **fields: Any) -> list[Outcome]:
    """Whole, and streamed."""
    return [bench.client.complete(prompt, **fields), bench.client.stream(prompt, **fields).finish()]


def generated(bench: PDBench, role: str) -> int:
    tokens: int = bench.worker(role)["load"]["generation_tokens"]
    return tokens


def test_b1_one_token_is_one_token_and_decode_is_not_asked(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    wanted = reference.client.complete(prompt, max_tokens=1)
    before = [generated(bench, "decode"), bench.worker("decode")["load"]["steps"]]
    assert answers(bench, prompt, max_tokens=1) == [wanted] * 2
    assert (wanted.status, len(wanted.tokens), wanted.completion_tokens) == (200, 1, 1)
    assert wanted.choices[0].finish_reason == "length"
    if bench.shape.is_apart:
        assert [generated(bench, "decode"), bench.worker("decode")["load"]["steps"]] == before


def test_b1_a_stop_as_first_token_ends_after_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(70)
    [first] = reference.client.complete(prompt, max_tokens=1).tokens
    wanted = reference.client.complete(prompt, stop_token_ids=[first])
    steps = bench.worker("decode")["load"]["steps"]
    assert answers(bench, prompt, stop_token_ids=[first]) == [wanted] * 2
    assert (wanted.tokens, wanted.choices[0].finish_reason) == ((first,), "stop")
    if bench.shape.is_apart:
        assert bench.worker("decode")["load"]["steps"] == steps


def test_b2_min_tokens_counts_the_first_token(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(40)
    first, second = reference.client.complete(prompt, max_tokens=2, ignore_eos=True).tokens
    assert first != second
    other = reference.client.complete(
        prompt, max_tokens=2, ignore_eos=True, logit_bias={str(second): -100}
    ).tokens
    assert other[0] == first
    fields = {"max_tokens": 2, "stop_token_ids": [second], "ignore_eos": True}
    assert [one.tokens for one in answers(bench, prompt, min_tokens=1, **fields)] == [(first, second)] * 2
    assert [one.tokens for one in answers(bench, prompt, min_tokens=2, **fields)] == [other] * 2


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
    before = generated(bench, "decode")
    stream = bench.client.stream(fresh_prompt(200), n=4, temperature=1.0, max_tokens=700, ignore_eos=True)
    assert all(stream.next_tokens() for _ in range(8))
    stream.close()
    assert wait_for(bench.is_idle) < 2.0
    assert [worker["owners"] for worker in bench.kv()["workers"]] == [{}] * len(bench.workers())
    assert generated(bench, "decode") - before < 4 * 700


def test_b4_logprobs_are_complete_the_first_from_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(50)
    fields = {"logprobs": 3, "max_tokens": 6, "ignore_eos": True}
    wanted = reference.client.complete(prompt, **fields)
    for answer in (bench.client.complete(prompt, **fields), bench.client.stream(prompt, **fields).finish()):
        assert answer.tokens == wanted.tokens
        assert len(answer.choices[0].logprobs) == 6
        assert answer.choices[0].logprobs == pytest.approx(
            wanted.choices[0].logprobs, abs=LOGPROB_TOLERANCE, rel=0
        )


def test_b4_text_joins_across_the_border(bench: PDBench, reference: PDBench) -> None:
    """Random bytes: most answers begin or end in the middle of a character."""
    for seed in range(12):
        prompt, fields = fresh_prompt(20), {"temperature": 1.5, "seed": seed, "ignore_eos": True}
        wanted = reference.client.complete(prompt, **fields)
        assert answers(bench, prompt, **fields) == [wanted] * 2
        assert wanted.choices[0].text


def test_b4_a_stop_string_spans_the_border(bench: PDBench, reference: PDBench) -> None:
    prompt = "bread and the sea and "
    whole = reference.client.complete(prompt, max_tokens=12, ignore_eos=True).choices[0].text
    for width in (2, 3, 5):
        stop = whole[:width]
        for answer in answers(bench, prompt, max_tokens=12, stop=[stop], ignore_eos=True):
            assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")


def test_b5_the_prompts_logprobs_come_from_prefill(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(2 * BLOCK + 3)
    fields = {"echo": True, "logprobs": 1, "max_tokens": 3, "ignore_eos": True}
    wanted = reference.client.complete(prompt, **fields)
    answer = bench.client.complete(prompt, **fields)
    assert answer.tokens == wanted.tokens
    assert answer.choices[0].text == wanted.choices[0].text
    assert len(answer.choices[0].logprobs) == len(prompt) - 1 + 3
    assert answer.choices[0].logprobs == pytest.approx(
        wanted.choices[0].logprobs, abs=LOGPROB_TOLERANCE, rel=0
    )


@pytest.mark.parametrize("length", [BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 7])
def test_b6_cached_tokens_are_whole_blocks_short_of_the_last_token(bench: PDBench, length: int) -> None:
    prompt = fresh_prompt(length)
    cold, warm = (bench.client.complete(prompt).cached_tokens for _ in range(2))
    streamed = bench.client.stream(prompt).finish().cached_tokens
    assert (cold, warm, streamed) == (0, *[(length - 1) // BLOCK * BLOCK] * 2)


def test_penalties_see_the_first_token_too(bench: PDBench, reference: PDBench) -> None:
    fields = {"presence_penalty": 2.0, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "max_tokens": 24}
    matters = []
    for sampling in ({"temperature": 0}, {"temperature": 1.0, "seed": 3, "top_p": 0.9}):
        prompt = fresh_prompt(45)
        wanted = reference.client.complete(prompt, **sampling, **fields)
        assert answers(bench, prompt, **sampling, **fields) == [wanted] * 2
        assert wanted.status == 200
        plain = reference.client.complete(prompt, **sampling, max_tokens=24)
        matters.append(wanted.tokens != plain.tokens)
    assert any(matters)  # a prompt whose answer repeats no token is as good without penalties
