"""`atomesh bench`: measure any OpenAI-compatible server under load."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from atomesh.bench.benchmark import Benchmark, Outcome, measure, warm_up
from atomesh.bench.goodput import Objectives, parse_objectives
from atomesh.bench.openai_client import OpenAIClient
from atomesh.bench.readiness import choose_model
from atomesh.bench.record import RequestRecord
from atomesh.bench.report import Report, Settings, record_to_json, to_json, to_text
from atomesh.bench.sender import Sender
from atomesh.cli.bench_options import (
    LOAD_DEFAULTS,
    REPORT_DEFAULTS,
    REQUEST_DEFAULTS,
    SERVER_DEFAULTS,
    LoadOptions,
    Plan,
    ReportOptions,
    RequestOptions,
    ServerOptions,
    make_plan,
)
from atomesh.clock import MonotonicClock

INTERRUPTED = 130  # as a shell says it: 128 + SIGINT


def bench(
    *,
    server: ServerOptions = SERVER_DEFAULTS,
    requests: RequestOptions = REQUEST_DEFAULTS,
    load: LoadOptions = LOAD_DEFAULTS,
    report: ReportOptions = REPORT_DEFAULTS,
) -> int:
    """Measure any OpenAI-compatible server under load: TTFT, TPOT, ITL, E2E latency, throughput, goodput.

    Without options: 32 prompts of 256 tokens, answers of 64, four at a time. Ctrl-C reports what is done so
    far. Exits with 1 if no request succeeded.
    """
    plan = make_plan(server, requests, load)
    job = Benchmark(plan.requests, plan.concurrency, parse_objectives(report.goodput), load.warmups)
    try:
        with _progress() as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            model, outcome = runner.run(_run(server, requests, plan, job, progress))
    except KeyboardInterrupt:  # before the load: there is nothing to report
        return INTERRUPTED
    settings = _settings(server, plan, model, job.objectives, requests.seed)
    _print(Report(settings, outcome.figures, outcome.notices, outcome.unfinished), outcome, report)
    return 0 if outcome.figures.completed else 1


async def _run(
    server: ServerOptions, requests: RequestOptions, plan: Plan, job: Benchmark, progress: "ProgressBar"
) -> tuple[str, Outcome]:
    stop = asyncio.Event()
    clock = MonotonicClock()
    async with OpenAIClient(server.url, api_key=server.api_key, clock=clock) as client:
        model = await choose_model(client, server.model, on_wait=progress.say)
        sender = Sender(
            client=client,
            clock=clock,
            writer=plan.writer,
            model=model,
            endpoint=server.endpoint,
            temperature=requests.temperature,
            ignore_eos=requests.ignore_eos,
            timeout_s=server.timeout,
        )
        progress.warming_up()
        sender = await warm_up(job, sender)
        progress.started(len(job.requests))
        with _interrupt_sets(stop):
            return model, await measure(job, sender, progress.recorded, stop)


@contextmanager
def _interrupt_sets(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class ProgressBar:
    """On stderr, so that stdout holds the report alone; silent where stderr is no terminal."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console = console
        self._bar = bar
        self._task = bar.add_task("Connecting", total=None, speed="", failed="")
        self._failed = 0
        self._tokens = 0

    def say(self, words: str) -> None:
        self._console.print(words, highlight=False)

    def warming_up(self) -> None:
        self._bar.update(self._task, description="Warming up")

    def started(self, total: int) -> None:
        self._bar.reset(self._task, total=total, description="Requests")

    def recorded(self, record: RequestRecord) -> None:
        self._failed += record.failure is not None
        self._tokens += record.completion.output_tokens if record.completion is not None else 0
        failed = f"[red]{self._failed} failed[/red]" if self._failed else ""
        self._bar.update(self._task, advance=1, speed=self._speed(), failed=failed)

    def _speed(self) -> str:
        seconds = self._bar.tasks[self._task].elapsed
        return f"{self._tokens / seconds:.0f} tok/s" if seconds else ""


@contextmanager
def _progress() -> Iterator[ProgressBar]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[failed]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield ProgressBar(console, bar)


def _settings(server: ServerOptions, plan: Plan, model: str, objectives: Objectives, seed: int) -> Settings:
    return Settings(
        url=server.url,
        model=model,
        endpoint=server.endpoint,
        workload=plan.words,
        rate=plan.rate,
        concurrency=plan.concurrency,
        seed=seed,
        objectives_ms={name: bound * 1000 for name, bound in objectives.bounds.items()},
    )


def _print(whole: Report, outcome: Outcome, options: ReportOptions) -> None:
    if not options.json:
        print(to_text(whole))
        return
    document: dict[str, Any] = to_json(whole)
    if options.per_request:
        start = min((record.started_s for record in outcome.records), default=0.0)
        document["requests"] = [record_to_json(record, start) for record in outcome.records]
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
