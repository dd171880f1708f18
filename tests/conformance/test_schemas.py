"""What the tiny random model says under a schema is valid, or the beginning of it; or the schema is refused.

The schemas are in `schemas/`, one a line: its name, the keywords it is about, and, where it must be refused,
what the refusal names. The model is pushed towards quotes and brackets that close, so that most answers end;
with each seed less, so that those that end have more in them.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.answer_finisher import AnswerFinisher
from atomesh.testing.completion_client import Client, Outcome
from atomesh.testing.json_prefix import NotJsonError, is_whole_json
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.schema_judge import faults_of
from atomesh.testing.tiny_tokenizer import EOS_TOKEN_ID, tiny_tokenizer

FOLDER = Path(__file__).parent / "schemas"
AT_ONCE = 16
SAMPLED = 220
SEEDS, SOAK_SEEDS = range(1), range(3)
CHOICES = 3
SHORT, LONG = 48, 640
LEAST_ENDED = 0.6
PUSHED = ('"', "}", "]")
PUSHES = (4.0, 2.0, 0.5)


@dataclass(frozen=True, slots=True)
class Case:
    group: str
    name: str
    schema: dict[str, Any]
    refused: str | None

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


@dataclass(slots=True)
class Result:
    """`counts` of answers by how they ended; `faults` is all that is not as it must be."""

    case: Case
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def read_cases() -> Iterator[Case]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            yield Case(path.stem, found["name"], found["schema"], found.get("refused"))


CASES = list(read_cases())
CUT_CHARACTER = "\ufffd"
FINISHER = AnswerFinisher()
PUSHED_IDS = [EOS_TOKEN_ID, *map(tiny_tokenizer().token_to_id, PUSHED)]


def ask(client: Client, case: Case, seed: int, max_tokens: int) -> Outcome:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": case.schema}}
    sampling: dict[str, Any] = {"n": CHOICES, "seed": seed, "temperature": 1.0}
    sampling["logit_bias"] = {str(token_id): PUSHES[seed] for token_id in PUSHED_IDS}
    return client.complete("An answer: ", response_format=wanted, max_tokens=max_tokens, **sampling)


def hold(client: Client, case: Case, seeds: Sequence[int]) -> Result:
    result = Result(case)
    if case.refused is not None:
        result.faults += refusal_faults(ask(client, case, 0, SHORT), case.refused)
        result.counts["refused"] += 1
        return result
    for seed in seeds:
        short, long = (ask(client, case, seed, length) for length in (SHORT, LONG))
        if (short.status, long.status) != (200, 200):
            result.faults.append(f"{short.status}, {long.status}: {short.message or long.message}")
            return result
        for cut, whole in zip(short.choices, long.choices, strict=True):
            result.counts[whole.finish_reason or "nothing"] += 1
            result.counts["prefixes"] += cut.finish_reason == "length"
            result.faults += answer_faults(case, whole.text, whole.finish_reason)
            result.faults += answer_faults(case, cut.text, cut.finish_reason)
            if whole.token_ids[: len(cut.token_ids)] != cut.token_ids:
                result.faults.append(f"{cut.text!r} is no beginning of {whole.text!r}")
    return result


def refusal_faults(answer: Outcome, keyword: str) -> list[str]:
    if answer.status == 400 and keyword in answer.message:
        return []
    said = answer.message or [choice.text for choice in answer.choices]
    return [f"not refused by the name of {keyword!r}: {answer.status} {said}"]


def answer_faults(case: Case, text: str, finish_reason: str | None) -> list[str]:
    said = f"{finish_reason} {text[:300]!r}"
    try:
        is_whole = is_whole_json(text if finish_reason == "stop" else text.rstrip(CUT_CHARACTER))
    except NotJsonError as error:
        return [f"{said}: {error}"]
    if finish_reason == "length":
        return [f"{said}: {fault}" for fault in beginning_faults(case, text)]
    if finish_reason != "stop" or not is_whole:
        return [f"{said}: an end of its own"]
    return [f"{said}: {fault}" for fault in faults_of(case.schema, text)]


def beginning_faults(case: Case, text: str) -> list[str]:
    """Of the shortest answer that begins so."""
    try:
        whole = FINISHER.finish(case.schema, text.rstrip(CUT_CHARACTER))
    except ValueError as error:
        return [str(error)]
    return (
        [] if whole is None else [f"as {whole[:300]!r}: {fault}" for fault in faults_of(case.schema, whole)]
    )


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 300
    assert len({str(case) for case in CASES}) == len(CASES)
    assert sum(case.refused is None for case in CASES) >= 300


def test_answers_are_valid_or_their_beginning_or_the_keyword_is_named(
    bench: PDBench, soak: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = CASES if soak else random.Random(5).sample(CASES, SAMPLED)
    seeds = SOAK_SEEDS if soak else SEEDS
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = list(threads.map(lambda case: hold(bench.client, case, seeds), cases))
    faults = [f"{result.case}: {fault}" for result in results for fault in result.faults]
    counts = sum((result.counts for result in results), Counter[str]())
    held = [result for result in results if result.case.refused is None]
    ended = sum(result.counts["stop"] > 0 for result in held)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{bench.shape.name}: {len(results)} schemas, {counts['refused']} of them refused by name; "
            f"{counts['stop'] + counts['length']} answers, {counts['stop']} ended, {counts['length']} cut; "
            f"{counts['prefixes']} beginnings; {ended} of {len(held)} schemas have an answer that ended"
        )
    assert not faults, "\n".join(faults)
    assert ended >= LEAST_ENDED * len(held)
