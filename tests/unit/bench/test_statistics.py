import numpy as np
import pytest

from atomesh.bench.completion_stream import Completion, OutputChunk
from atomesh.bench.goodput import Objectives
from atomesh.bench.record import Failure, RequestRecord, times_of
from atomesh.bench.statistics import (
    Distribution,
    FailureCount,
    distribution,
    peak_concurrency,
    peak_per_second,
    percentile,
    summarise,
)

NO_OBJECTIVES = Objectives({})


def completion(
    chunk_times: list[float], *, tokens: int | None = None, last: float | None = None, usage: bool = True
) -> Completion:
    return Completion(
        chunks=tuple(OutputChunk(at, 1) for at in chunk_times),
        first_s=chunk_times[0],
        last_s=chunk_times[-1] if last is None else last,
        finish_reason="length",
        prompt_tokens=10 if usage else None,
        output_tokens=len(chunk_times) if tokens is None else tokens,
        counted_by_usage=usage,
    )


def success(started: float, done: Completion, *, due: float | None = None) -> RequestRecord:
    return RequestRecord(started if due is None else due, started, done.last_s, 8, completion=done)


def failure(started: float, ended: float, kind: str, message: str = "") -> RequestRecord:
    return RequestRecord(started, started, ended, 8, failure=Failure(kind, message))


def test_the_figures_of_a_request() -> None:
    done = completion([1.5, 1.75, 2.5], tokens=5, last=2.75)

    times = times_of(success(1.0, done), done)

    assert times.ttft == 0.5
    assert times.tpot == pytest.approx((2.75 - 1.5) / 4)
    assert times.itl == (0.25, 0.75)
    assert times.e2el == 1.75


def test_a_single_token_has_no_time_per_output_token() -> None:
    done = completion([1.5])

    assert times_of(success(1.0, done), done).tpot is None


@pytest.mark.parametrize("percent", [0, 1, 50, 90, 99, 100])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_percentiles_are_those_of_numpy(count: int, percent: float) -> None:
    values = sorted(np.random.default_rng(count).exponential(size=count).tolist())

    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), rel=1e-12)


def test_a_distribution_of_unsorted_values() -> None:
    found = distribution([4.0, 1.0, 3.0, 2.0])

    assert found == Distribution(
        mean=2.5,
        std=pytest.approx(1.25**0.5),
        p50=2.5,
        p90=pytest.approx(3.7),
        p99=pytest.approx(3.97),
    )


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None


def test_a_run_is_summed_up() -> None:
    records = [
        success(0.0, completion([0.5, 1.0, 1.5])),
        success(1.0, completion([1.1, 1.2], usage=False), due=0.9),
        failure(1.0, 1.5, "HTTP 503", "full"),
    ]

    figures = summarise(records, 4.0, Objectives({"ttft": 0.2}))

    assert (figures.completed, figures.failed) == (2, 1)
    assert (figures.input_tokens, figures.output_tokens) == (10 + 8, 3 + 2)
    assert (figures.input_counted, figures.output_counted) == (1, 1)
    assert figures.request_throughput == 0.5
    assert figures.goodput == 0.25
    assert figures.output_throughput == 1.25
    assert figures.total_throughput == 23 / 4
    assert figures.ttft is not None
    assert figures.ttft.mean == pytest.approx(0.3)
    assert figures.itl is not None
    assert figures.itl.mean == pytest.approx((0.5 + 0.5 + 0.1) / 3)
    assert figures.tpot is not None
    assert figures.tpot.mean == pytest.approx((0.5 + 0.1) / 2)
    assert figures.e2el is not None
    assert figures.e2el.p50 == pytest.approx((1.5 + 0.2) / 2)
    assert figures.start_lag is not None
    assert figures.start_lag.mean == pytest.approx(0.1 / 3)


def test_goodput_is_none_without_objectives() -> None:
    assert summarise([success(0.0, completion([0.5]))], 1.0, NO_OBJECTIVES).goodput is None


def test_a_run_of_failures_alone_has_no_latencies() -> None:
    figures = summarise([failure(0.0, 1.0, "timeout")], 2.0, NO_OBJECTIVES)

    assert (figures.completed, figures.failed, figures.output_throughput) == (0, 1, 0.0)
    assert (figures.ttft, figures.tpot, figures.itl, figures.e2el) == (None, None, None, None)


def test_failures_are_counted_by_kind_the_most_frequent_first() -> None:
    records = [
        failure(0.0, 1.0, "timeout", "a"),
        failure(0.0, 1.0, "HTTP 503", "b"),
        failure(0.0, 1.0, "HTTP 503", "c"),
    ]

    assert summarise(records, 1.0, NO_OBJECTIVES).failures == (
        FailureCount("HTTP 503", 2, "b"),
        FailureCount("timeout", 1, "a"),
    )


def test_peak_concurrency_counts_failures_and_not_those_that_only_touch() -> None:
    records = [failure(0.0, 2.0, "x"), failure(1.0, 3.0, "x"), failure(2.0, 4.0, "x")]

    assert peak_concurrency(records) == 2
    assert peak_concurrency([]) == 0


def test_peak_throughput_is_of_the_fullest_second_from_the_first_token() -> None:
    completions = [completion([0.9, 1.0, 1.8]), completion([1.85, 1.95, 2.5])]

    assert peak_per_second(completions) == 4.0
    assert peak_per_second([]) == 0.0
