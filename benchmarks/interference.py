"""What a long prompt does to the streams that run beside it: prefill and decode together, and apart.

Each shape of server has the same cores and the same load, over HTTP, and they take turns; a shape is 1+1
(prefill + decode workers) or 1x512 (unified workers x tokens of a chunk). `python benchmarks/interference.py
--help`
"""

import argparse
import asyncio
import json
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from interference_figures import Figures, count_paths, figures_of, gaps_within, spans_of_waits
from interference_load import Answer, Contention, Load, alone, connect, contend, warm_up
from interference_plot import Panel, interference_svg
from interference_report import Found, Report, Setting
from interference_shapes import Server, Shape, serving
from machine import describe_machine
from results_page import write_section
from revision import commit

from atomesh.cli.core_shares import usable_cores
from atomesh.model_files.catalog import DEFAULT_MODEL
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.resolve import resolve_model

OWNER = "benchmarks/interference.py"
PLOT = "interference.svg"


@dataclass(slots=True)
class Pace:
    """How often long prompts arrive: seconds, or from the first time that they were measured alone."""

    busy_share: float
    interval_s: float | None

    def settle(self, measured: list[Answer]) -> float:
        if self.interval_s is None:
            self.interval_s = fmean(answer.ttft_s for answer in measured) / self.busy_share
            note(f"a long prompt every {self.interval_s:.1f} s")
        return self.interval_s


@dataclass(frozen=True, slots=True)
class Run:
    alone: list[Answer]
    contention: Contention

    def figures(self) -> Figures:
        seen = self.contention
        window = (seen.begun_at, seen.ended_at)
        return figures_of(self.alone, seen.streams, seen.prompts, window, seen.generator_share)

    def panel(self, title: str) -> Panel:
        seen, start = self.contention, self.contention.begun_at
        gaps = gaps_within(seen.streams, (start, seen.ended_at))
        return Panel(
            title,
            [(gap.start - start, gap.seconds) for gap in gaps],
            [(begin - start, end - start) for begin, end in spans_of_waits(seen.prompts)],
            seen.ended_at - start,
        )


def main() -> None:
    options = parse_options()
    model = resolve_model(options.model, options.home)
    load = Load(
        num_streams=options.streams,
        stream_prompt=options.stream_prompt,
        stream_tokens=options.stream_tokens,
        lengths=tuple(options.prompts),
        answer_tokens=options.answer,
        idle_s=options.idle,
        vocab_size=open_checkpoint(model.path).config.vocab_size,
    )
    pace = Pace(options.busy, options.every)
    found = {shape.text: Found(shape) for shape in options.shapes}
    panels: dict[str, Panel] = {}
    dtype = "unknown"
    for index in range(options.rounds):
        for shape in options.shapes[:: -1 if index % 2 else 1]:
            note(f"round {index + 1} of {options.rounds}: {shape.name}")
            with serving(shape, str(model.path), options.home, options.flag) as server:
                run = asyncio.run(measure(server, load, pace))
                dtype = served_dtype(server)
            found[shape.text].rounds.append(run.figures())
            found[shape.text].paths.update(count_paths(run.contention.prompts))
            panels.setdefault(shape.text, run.panel(shape.name))
    setting = Setting(
        model=model.name,
        dtype=dtype,
        commit=commit(),
        machine=describe_machine(),
        num_streams=load.num_streams,
        lengths=load.lengths,
        answer_tokens=load.answer_tokens,
        interval_s=pace.interval_s or 0.0,
        rounds=options.rounds,
    )
    publish(Report(setting, list(found.values()), PLOT if options.write else None), panels, options)


async def measure(server: Server, load: Load, pace: Pace) -> Run:
    async with connect(server.url, server.model, load.vocab_size) as client:
        with kept_beside_prefill():
            await warm_up(client, load)
            measured = await alone(client, load)
            return Run(measured, await contend(client, load, pace.settle(measured)))


def publish(report: Report, panels: dict[str, Panel], options: argparse.Namespace) -> None:
    if options.write is not None:
        write_section(options.write, OWNER, report.as_markdown())
        plot = options.write.parent / PLOT
        plot.write_text(interference_svg([panels[found.shape.text] for found in report.found]))
    print(json.dumps(report.as_json(), indent=2) if options.json else report.as_markdown())


@contextmanager
def kept_beside_prefill() -> Iterator[None]:
    """On the first core, prefill's: the clients are elsewhere in life, and must not take decode's core.

    Only for the block, so that a server started later may use all cores.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, usable_cores()[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def served_dtype(server: Server) -> str:
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:  # noqa: S310
        found = re.search(r'cache_dtype="(\w+)"', answer.read().decode())
    return found[1] if found else "unknown"


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    shapes = [Shape.parse(text) for text in ("1+1", "1x64", "1x256", "1x1024")]
    add("model", nargs="?", default=DEFAULT_MODEL, help="as for atomesh serve")
    add("--home", type=Path, default=Path("~/.cache/atomesh").expanduser(), help="where fetched models lie")
    add("--shapes", type=Shape.parse, nargs="+", default=shapes, help="the first one sets the pace")
    add("--streams", type=int, default=4, help="answers that decode all the time")
    add("--stream-prompt", type=int, default=64, help="tokens of a stream's prompt")
    add("--stream-tokens", type=int, default=7000, help="tokens of a stream, more than it gets to")
    add("--prompts", type=int, nargs="+", default=[4096, 2048, 6144, 3072], help="tokens of the long prompts")
    add("--answer", type=int, default=8, help="tokens of a long prompt's answer, 2 or more")
    add("--every", type=float, help="seconds between two long prompts, instead of --busy")
    add("--busy", type=float, default=0.75, help="share of the time that one prompt at a time would take")
    add("--idle", type=float, default=10.0, help="seconds without a long prompt, before and after")
    add("--rounds", type=int, default=3, help="rounds of all shapes")
    add(
        "--flag",
        action="append",
        default=[],
        help="a further flag of atomesh serve, such as --flag=--dtype=float32",
    )
    add("--json", action="store_true", help="one JSON document instead of tables")
    add(
        "--write", type=Path, metavar="PAGE", help="also put the tables into this page, with a plot beside it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
