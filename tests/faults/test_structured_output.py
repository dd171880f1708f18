"""FAULTS A8, D1 and F4 for grammars: the answer is U's and in the language, whoever samples which token."""

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from atomesh.testing.completion_client import LOGPROB_TOLERANCE, Outcome
from atomesh.testing.dying_decode import killed_at
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench

WORDS = ["north", "east", "south", "west"]
ROUTE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"enum": WORDS}, "minItems": 12, "maxItems": 16},
        "speed": {"type": "integer", "minimum": 1, "maximum": 999},
        "note": {"type": "string", "maxLength": 6},
    },
    "required": ["steps", "speed", "note"],
    "additionalProperties": False,
}
AS_ROUTE = {"type": "json_schema", "json_schema": {"name": "route", "strict": True, "schema": ROUTE}}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 77},
    "two": {"temperature": 0.9, "seed": 78, "n": 2},
}
DEATHS = list(itertools.product((0, 1, 7, 50), KINDS))
SAMPLED = {(0, "seeded"), (1, "two"), (7, "greedy"), (50, "two")}


def fields_of(kind: str, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 400, "logprobs": 2, "response_format": AS_ROUTE, **KINDS[kind], **fields}


def assert_same(answer: Outcome, wanted: Outcome) -> None:
    """All of it, logprobs up to what one worker's own differ by."""
    for one, other in zip(answer.choices, wanted.choices, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=LOGPROB_TOLERANCE, rel=0)
        assert len(one.logprobs) == len(one.token_ids)
        assert replace(one, logprobs=()) == replace(other, logprobs=())
    assert replace(answer, choices=()) == replace(wanted, choices=())


def assert_routes(answer: Outcome) -> None:
    assert (answer.status, answer.ended_well) == (200, True)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.text), ROUTE)


@pytest.mark.parametrize("kind", KINDS)
def test_a8_a_schema_across_the_hand_off(bench: PDBench, reference: PDBench, kind: str) -> None:
    prompt, fields = fresh_prompt(100), fields_of(kind)
    wanted = reference.client.complete(prompt, **fields)
    assert_routes(wanted)
    assert_same(bench.client.complete(prompt, **fields), wanted)
    assert_same(bench.client.stream(prompt, **fields).finish(), wanted)


@pytest.mark.parametrize("kind", ["seeded", "two"])
def test_a8_the_first_token_counts_once(bench: PDBench, reference: PDBench, kind: str) -> None:
    """Were it consumed twice, or not at all, there would be four letters or six."""
    fields = {**KINDS[kind], "max_tokens": 20, "structured_outputs": {"regex": "[a-e]{5}"}}
    prompt = fresh_prompt(40)
    answer = bench.client.complete(prompt, **fields)
    assert answer == reference.client.complete(prompt, **fields)
    for choice in answer.choices:
        assert re.fullmatch("[a-e]{5}", choice.text)
        assert choice.finish_reason == "stop"


def test_a8_a_grammar_that_ends_with_the_first_token_ends_there(bench: PDBench, reference: PDBench) -> None:
    """Neither EOS nor min_tokens is waited for."""
    fields = {"structured_outputs": {"regex": "[xyz]"}, "max_tokens": 20, "min_tokens": 9}
    for ignore_eos in (False, True):
        answer = bench.client.complete(fresh_prompt(40), **fields, ignore_eos=ignore_eos)
        [choice] = answer.choices
        assert choice.text in ("x", "y", "z")
        assert (choice.finish_reason, len(choice.token_ids), answer.completion_tokens) == ("stop", 1, 1)


def test_a8_what_is_cut_is_a_beginning(bench: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(40)
    whole = bench.client.complete(prompt, **fields_of("greedy"))
    for length in (1, 2, 30):
        cut = bench.client.complete(prompt, **fields_of("greedy", max_tokens=length))
        assert cut.choices[0].finish_reason == "length"
        assert cut.tokens == whole.tokens[:length]


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["alpha", "beta", "(x|y)*"]}}, r"alpha|beta|\(x\|y\)\*"),
        ({"structured_outputs": {"grammar": 'start: "a" b{2,3}\nb: "<" /[0-9]/ ">"'}}, "a(<[0-9]>){2,3}"),
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 10, "maximum": 99}}}, "[1-9][0-9]"),
        ({"response_format": {"type": "json_object"}}, r"\{.*"),
    ],
    ids=["choice", "grammar", "json", "object"],
)
def test_every_kind_is_obeyed(
    bench: PDBench, reference: PDBench, fields: dict[str, Any], pattern: str
) -> None:
    prompt, seeded = fresh_prompt(40), {"temperature": 1.0, "seed": 5, "max_tokens": 60, "n": 3}
    answer = bench.client.complete(prompt, **seeded, **fields)
    assert answer == reference.client.complete(prompt, **seeded, **fields)
    for choice in answer.choices:
        assert re.fullmatch(pattern, choice.text, re.DOTALL)


@pytest.mark.parametrize(
    ("at", "kind"),
    [pytest.param(*case, marks=() if case in SAMPLED else pytest.mark.soak) for case in DEATHS],
)
def test_d1_a_death_amid_an_object_is_not_seen(
    pairs: PDBench, reference: PDBench, at: int, kind: str
) -> None:
    prompt, fields = fresh_prompt(100), fields_of(kind)
    wanted = reference.client.complete(prompt, **fields)
    moves = pairs.metric("atomesh_migrations_total")
    answer = killed_at(pairs, prompt, at, fields)
    assert_same(answer, wanted)
    assert_routes(answer)
    assert pairs.metric("atomesh_migrations_total") - moves == 1


def test_constraints_that_leave_nothing_are_that_requests_own_fault(bench: PDBench) -> None:
    """Only the first token can be told beforehand; what comes later is an error of this request alone."""
    refused = bench.client.complete(
        fresh_prompt(20), structured_outputs={"regex": "[0-9]{3}"}, allowed_token_ids=[300, 301]
    )
    assert refused.status == 400
    assert "no token can be chosen" in refused.message
    assert bench.client.complete(fresh_prompt(20)).status == 200
