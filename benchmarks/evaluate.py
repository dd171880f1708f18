"""A small multiple-choice task scored through the API, and by transformers itself: make evaluate.

    python benchmarks/evaluate.py [MODEL] [--shapes 1x512 1+1] [--questions FILE] [--write docs/results.md]
    python benchmarks/evaluate.py --url http://127.0.0.1:8000     # any server that echoes with logprobs

Each shape of `atomesh serve` with MODEL, a Llama (the default model unless it is named), is asked in float32.
With --url there is nothing to hold the score against.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from interference_shapes import Shape, serving
from machine import describe_machine
from multiple_choice import (
    QUESTIONS,
    Api,
    Candidate,
    Question,
    Score,
    ask_reference,
    ask_server,
    encode_question,
    read_questions,
)
from results_page import table, write_section
from revision import commit

from atomesh.cli import environment
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.resolve import resolve_model
from atomesh.testing.reference_model import load_reference

OWNER = "benchmarks/evaluate.py"
LIMIT = 1e-3  # in a choice's sum of natural logarithms
REFERENCE = "transformers"


@dataclass(frozen=True, slots=True)
class Run:
    score: Score
    seconds: float


def main() -> int:
    options = _parse()
    questions = read_questions(options.questions)
    if options.url is not None:
        run, _ = evaluate(Api(options.url.rstrip("/"), options.model), questions)
        print(f"{run.score.count_right(questions)} of {len(questions)} right, {run.seconds:.1f} s")
        return 0
    runs = run_all(options, questions)
    text = report(options.model, questions, runs)
    print(text)
    if options.write is not None:
        write_section(options.write, OWNER, text)
    return 0 if is_equal(runs) else 1


def run_all(options: argparse.Namespace, questions: list[Question]) -> dict[str, Run]:
    """By name: every shape, and transformers at the end."""
    model = resolve_model(options.model, environment.home()).path
    runs: dict[str, Run] = {}
    candidates: list[list[Candidate]] = []
    for shape in map(Shape.parse, options.shapes):
        with (
            tempfile.TemporaryDirectory() as home,
            serving(shape, str(model), Path(home), ("--dtype=float32", "--kv-memory=1GiB")) as server,
        ):
            runs[shape.name], candidates = evaluate(Api(server.url, server.model), questions)
    began = time.monotonic()
    score = ask_reference(load_reference(model), candidates)
    return {**runs, REFERENCE: Run(score, time.monotonic() - began)}


def evaluate(api: Api, questions: list[Question]) -> tuple[Run, list[list[Candidate]]]:
    began = time.monotonic()
    candidates = [encode_question(api, question) for question in questions]
    score = ask_server(api, candidates)
    return Run(score, time.monotonic() - began), candidates


def is_equal(runs: Mapping[str, Run]) -> bool:
    """The same picks and greedy flags, and sums within the limit."""
    judge = runs[REFERENCE].score
    return all(
        run.score.picks == judge.picks
        and run.score.count_other_flags(judge) == 0
        and run.score.largest_difference(judge) <= LIMIT
        for run in runs.values()
    )


def report(model: str, questions: list[Question], runs: Mapping[str, Run]) -> str:
    judge = runs[REFERENCE].score
    rows = [
        [
            name,
            f"{run.score.count_right(questions)} of {len(questions)}",
            str(sum(ours != theirs for ours, theirs in zip(run.score.picks, judge.picks, strict=True))),
            str(run.score.count_other_flags(judge)),
            f"{run.score.largest_difference(judge):.1e}",
            f"{run.seconds:.1f}",
        ]
        for name, run in runs.items()
    ]
    header = ["scored by", "right", "other picks", "other greedy flags", "largest difference of a sum", "s"]
    verdict = "equal" if is_equal(runs) else "NOT EQUAL"
    return f"""## Log-likelihood evaluation: {Path(model).name}

Commit {commit()}; {describe_machine()}. {len(questions)} questions of four choices each, float32: through \
the API as lm-eval's local-completions asks (token ids, `echo`, `logprobs: 1`, `max_tokens: 1`), and by \
transformers itself. Differences are to transformers.

{table(header, rows)}

Wanted: the same picks, the same greedy flags, sums within {LIMIT:.0e}: {verdict}."""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--url", help="a server that runs already; MODEL is then its name for the model")
    parser.add_argument("--shapes", nargs="+", default=["1x512", "1+1"])
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--write", type=Path, help="the page whose section is to be written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
