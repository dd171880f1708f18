"""From the records of a run to its figures; pure. Definitions are those of vllm bench serve."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from atomesh.bench.completion_stream import Completion
from atomesh.bench.goodput import Objectives
from atomesh.bench.record import RequestRecord, RequestTimes, times_of


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds."""

    mean: float
    std: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class FailureCount:
    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Throughputs are per second over `duration_s`; a distribution is None where nothing was measured.

    `goodput` is None without objectives. `input_counted` and `output_counted` are the numbers of successes
    whose tokens the server's usage counted; the other successes count the planned input, and one token an
    output chunk. `peak_output_throughput` is the most output tokens in one second, counting from the start.
    """

    duration_s: float
    completed: int
    failures: tuple[FailureCount, ...]
    input_tokens: int
    output_tokens: int
    input_counted: int
    output_counted: int
    request_throughput: float
    goodput: float | None
    output_throughput: float
    total_throughput: float
    peak_output_throughput: float
    peak_concurrency: int
    start_lag: Distribution | None
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None

    @property
    def failed(self) -> int:
        return sum(failure.count for failure in self.failures)


@dataclass(frozen=True, slots=True)
class Success:
    record: RequestRecord
    completion: Completion
    times: RequestTimes


def summarise(records: Sequence[RequestRecord], duration_s: float, objectives: Objectives) -> Figures:
    """`duration_s`, above 0, is from the start of the run to the end of its last request."""
    successes = [
        Success(record, record.completion, times_of(record, record.completion))
        for record in records
        if record.completion is not None
    ]
    input_tokens = sum(_input_tokens(success) for success in successes)
    output_tokens = sum(success.completion.output_tokens for success in successes)
    good = sum(objectives.are_met_by(success.times) for success in successes)
    return Figures(
        duration_s=duration_s,
        completed=len(successes),
        failures=count_failures(records),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        input_counted=sum(success.completion.prompt_tokens is not None for success in successes),
        output_counted=sum(success.completion.counted_by_usage for success in successes),
        request_throughput=len(successes) / duration_s,
        goodput=good / duration_s if objectives.bounds else None,
        output_throughput=output_tokens / duration_s,
        total_throughput=(input_tokens + output_tokens) / duration_s,
        peak_output_throughput=peak_per_second([success.completion for success in successes]),
        peak_concurrency=peak_concurrency(records),
        start_lag=distribution([record.start_lag_s for record in records]),
        ttft=distribution([success.times.ttft for success in successes]),
        tpot=distribution([s.times.tpot for s in successes if s.times.tpot is not None]),
        itl=distribution([gap for success in successes for gap in success.times.itl]),
        e2el=distribution([success.times.e2el for success in successes]),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of ascending, non-empty values, by linear interpolation of nearest ranks (Hyndman and Fan, type 7)."""
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = math.ceil(rank)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    ordered = sorted(values)
    return Distribution(
        mean=fmean(ordered),
        std=pstdev(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
    )


def count_failures(records: Sequence[RequestRecord]) -> tuple[FailureCount, ...]:
    """By kind, the most frequent first, each with the first message seen."""
    failures = [record.failure for record in records if record.failure is not None]
    examples: dict[str, str] = {}
    for failure in failures:
        examples.setdefault(failure.kind, failure.message)
    counts = Counter(failure.kind for failure in failures)
    return tuple(FailureCount(kind, count, examples[kind]) for kind, count in counts.most_common())


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests in flight at one moment, failed ones too.

    One that ends as another starts does not overlap it.
    """
    changes = [(record.started_s, 1) for record in records] + [(record.ended_s, -1) for record in records]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak


def peak_per_second(completions: Sequence[Completion]) -> float:
    """The most output tokens that came in one whole second, counting from the first of all tokens."""
    chunks = [chunk for completion in completions for chunk in completion.chunks]
    if not chunks:
        return 0.0
    start = min(chunk.at_s for chunk in chunks)
    seconds: Counter[int] = Counter()
    for chunk in chunks:
        seconds[math.floor(chunk.at_s - start)] += chunk.tokens
    return float(max(seconds.values()))


def _input_tokens(success: Success) -> int:
    counted = success.completion.prompt_tokens
    return success.record.planned_input_tokens if counted is None else counted
