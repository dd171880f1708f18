"""How fast the engine decodes and prefills, against this machine's limits and transformers' `generate`.

All in one process and one run, the contestants taking turns. `python benchmarks/engine.py --help`
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from engine_contestants import AtomeshEngine, Contestant, Prompts, Transformers
from engine_report import OURS, DecodeSpeed, Limits, ModelCost, PrefillSpeed, Report, Setting, StepAnatomy
from machine import describe_machine, matrix_rate, read_bandwidth
from results_page import publish
from revision import commit

from atomesh.engine.options import EngineOptions
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.checkpoint import Checkpoint, open_checkpoint
from atomesh.model_files.resolve import resolve_model

OWNER = "benchmarks/engine.py"
DISSECTED = (1, 16)  # batches whose decode step is taken apart


@dataclass(slots=True)
class Rounds:
    """All that was measured: seconds by size and contestant, one entry a round."""

    limits: list[Limits] = field(default_factory=list)
    decode: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    prefill: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    anatomy: dict[int, list[StepAnatomy]] = field(default_factory=dict)


def main() -> None:
    options = parse_options()
    model = resolve_model(options.model, options.home)
    checkpoint = open_checkpoint(model.path)
    note(f"loading {model.name}")
    widest = max(32, *options.batches)
    ours = AtomeshEngine(checkpoint, EngineOptions(dtype=options.dtype, max_num_seqs=widest))
    dtype = getattr(torch, ours.description.dtype)
    contestants: list[Contestant] = [ours]
    if not options.alone:
        contestants.append(Transformers(checkpoint, dtype))
    rounds = Rounds()
    for index in range(options.rounds):
        note(f"round {index + 1} of {options.rounds}: the machine")
        rounds.limits.append(measure_limits(dtype, options))
        measure_round(rounds, ours, contestants[:: -1 if index % 2 else 1], options)
    report = summarise(rounds, checkpoint, ours, options)
    publish(options, OWNER, report.as_markdown(), report.as_json())


def measure_round(
    rounds: Rounds, ours: AtomeshEngine, contestants: Sequence[Contestant], options: argparse.Namespace
) -> None:
    vocab_size = ours.description.vocab_size
    for batch in options.batches:
        note(f"decode, batch {batch}")
        prompts = random_prompts(vocab_size, batch, options.context)
        found = rounds.decode.setdefault(batch, {})
        for contestant in contestants:
            found.setdefault(contestant.name, []).append(contestant.decode_s(prompts, options.steps))
        if batch in DISSECTED:
            rounds.anatomy.setdefault(batch, []).append(ours.anatomy(prompts, options.steps))
    for tokens in options.prompts:
        note(f"prefill, {tokens} tokens")
        (prompt,) = random_prompts(vocab_size, 1, tokens)
        found = rounds.prefill.setdefault(tokens, {})
        for contestant in contestants:
            found.setdefault(contestant.name, []).append(contestant.prefill_s(prompt))


def measure_limits(dtype: torch.dtype, options: argparse.Namespace) -> Limits:
    return Limits(
        read_bytes=read_bandwidth(options.read_mib * 2**20),
        dtype_flops=matrix_rate(dtype, options.matrix_size),
        bf16_flops=matrix_rate(torch.bfloat16, options.matrix_size),
    )


def summarise(
    rounds: Rounds, checkpoint: Checkpoint, ours: AtomeshEngine, options: argparse.Namespace
) -> Report:
    """Medians of what was measured, against the best of the machine."""
    limits = Limits(
        read_bytes=max(limit.read_bytes for limit in rounds.limits),
        dtype_flops=max(limit.dtype_flops for limit in rounds.limits),
        bf16_flops=max(limit.bf16_flops for limit in rounds.limits),
    )
    cost = ModelCost.of(checkpoint, getattr(torch, ours.description.dtype).itemsize)
    setting = Setting(
        model=checkpoint.name,
        dtype=ours.description.dtype,
        commit=commit(),
        machine=describe_machine(),
        context=options.context,
        steps=options.steps,
        rounds=options.rounds,
    )
    mean_context = options.context + options.steps / 2
    decode = [
        decode_speed(batch, found, cost.decode_bytes(batch, mean_context) / limits.read_bytes)
        for batch, found in rounds.decode.items()
    ]
    prefill = [
        prefill_speed(tokens, found, cost.prefill_flops(tokens), limits)
        for tokens, found in rounds.prefill.items()
    ]
    anatomy = [sorted(found, key=lambda a: a.outside)[len(found) // 2] for found in rounds.anatomy.values()]
    return Report(setting, limits, decode, prefill, anatomy)


def decode_speed(batch: int, seconds: dict[str, list[float]], least_s: float) -> DecodeSpeed:
    steps = {name: median(values) for name, values in in_order(seconds).items()}
    return DecodeSpeed(batch, {name: batch / step for name, step in steps.items()}, least_s / steps[OURS])


def prefill_speed(tokens: int, seconds: dict[str, list[float]], flops: float, limits: Limits) -> PrefillSpeed:
    spent = {name: median(values) for name, values in in_order(seconds).items()}
    rate = flops / spent[OURS]
    tokens_s = {name: tokens / value for name, value in spent.items()}
    return PrefillSpeed(tokens, tokens_s, rate / limits.dtype_flops, rate / limits.bf16_flops)


def in_order(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return dict(sorted(seconds.items(), key=lambda item: item[0] != OURS))


def random_prompts(vocab_size: int, count: int, length: int) -> Prompts:
    return torch.randint(vocab_size, (count, length)).tolist()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", default=DEFAULT_MODEL, help="as for atomesh serve")
    add("--home", type=Path, default=Path("~/.cache/atomesh").expanduser(), help="where fetched models lie")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    add("--batches", type=int, nargs="*", default=[1, 8, 16, 32], help="sequences that decode together")
    add("--prompts", type=int, nargs="*", default=[512, 2048], help="tokens of a prefill")
    add("--context", type=int, default=128, help="tokens of a prompt that is decoded from")
    add("--steps", type=int, default=64, help="decode steps of a measurement")
    add("--rounds", type=int, default=5, help="rounds of all measurements")
    add("--read-mib", type=int, default=2048, help="MiB read to measure the bandwidth; above any cache")
    add("--matrix-size", type=int, default=2048, help="rows and columns of the product that is timed")
    add("--alone", action="store_true", help="without transformers")
    add("--json", action="store_true", help="one JSON document instead of tables")
    add("--write", type=Path, metavar="PAGE", help="also put the tables into this page, docs/results.md")
    return parser.parse_args()


if __name__ == "__main__":
    main()
