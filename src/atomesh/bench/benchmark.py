"""A whole run in two stages: warm up and learn the server's dialect; then send the load and sum up."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atomesh.bench.dialect import notices
from atomesh.bench.failures import RequestFailed
from atomesh.bench.goodput import Objectives
from atomesh.bench.load import Load
from atomesh.bench.record import RequestRecord
from atomesh.bench.sender import Sender
from atomesh.bench.statistics import Figures, summarise
from atomesh.bench.workload import PlannedRequest, warmup_request
from atomesh.errors import ConfigurationError

MAX_START_LAG_S = 0.01


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`requests` in order of arrival; `concurrency` None for no limit; `warmups` at least 1."""

    requests: Sequence[PlannedRequest]
    concurrency: int | None
    objectives: Objectives
    warmups: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    figures: Figures
    records: tuple[RequestRecord, ...]
    unfinished: int
    notices: tuple[str, ...]


async def warm_up(benchmark: Benchmark, sender: Sender) -> Sender:
    """The sender in the dialect that the server speaks, found with the first warm-up; the others follow.

    Raises ConfigurationError when the server cannot answer even that one.
    """
    like = benchmark.requests[0]
    try:
        dialect = await sender.find_dialect(warmup_request(like, 0))
    except RequestFailed as failure:
        raise ConfigurationError(f"the server fails on the first request: {failure}") from failure
    sender = replace(sender, dialect=dialect)
    for index in range(1, benchmark.warmups):
        await sender.send(warmup_request(like, index), sender.clock.now())
    return sender


async def measure(
    benchmark: Benchmark,
    sender: Sender,
    on_record: Callable[[RequestRecord], None],
    stop: asyncio.Event,
) -> Outcome:
    """Sends the load, until all is answered or `stop` is set, and sums up what came back."""
    load = Load(sender.send, sender.clock, benchmark.concurrency)
    result = await load.run(benchmark.requests, on_record, stop)
    figures = summarise(result.records, result.duration_s, benchmark.objectives)
    found = [*notices(sender.dialect), *_lag_notices(figures, benchmark)]
    return Outcome(figures, result.records, result.unfinished, tuple(found))


def _lag_notices(figures: Figures, benchmark: Benchmark) -> list[str]:
    is_paced = benchmark.concurrency is None and benchmark.requests[-1].at_s > 0
    lag = figures.start_lag
    if not is_paced or lag is None or lag.p99 <= MAX_START_LAG_S:
        return []
    return [f"1 % of the requests were sent {lag.p99 * 1000:.0f} ms late or later: this machine is too busy"]
