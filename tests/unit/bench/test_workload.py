import math

import numpy as np
import pytest

from atomesh.bench.prompts import Segment, TokenIdWriter
from atomesh.bench.trace import TraceEntry
from atomesh.bench.workload import (
    TRACE_SPACE,
    UNIQUE_SPACE,
    PlannedRequest,
    SyntheticTraffic,
    plan_synthetic,
    plan_trace,
    warmup_request,
    with_random_arrivals,
)
from atomesh.errors import ConfigurationError


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_fixed_lengths_are_exact_and_without_a_rate_all_are_due_at_once() -> None:
    plan = plan_synthetic(SyntheticTraffic(count=3, input_tokens=10, output_tokens=4), rng())

    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in plan] == [(0.0, 10, 4)] * 3


def test_random_lengths_fill_their_range_and_nothing_else() -> None:
    plan = plan_synthetic(SyntheticTraffic(500, 10, 4, range_ratio=0.5), rng())

    assert {request.input_tokens for request in plan} == set(range(5, 16))
    assert {request.output_tokens for request in plan} == set(range(2, 7))


def test_conversation_lengths_are_log_normal_around_their_mean() -> None:
    plan = plan_synthetic(SyntheticTraffic(20_000, 300, 200, kind="conversation"), rng())
    inputs = np.array([request.input_tokens for request in plan])

    assert inputs.mean() == pytest.approx(300, rel=0.03)
    assert np.median(inputs) == pytest.approx(300 * math.exp(-0.5), rel=0.03)
    assert np.mean([request.output_tokens for request in plan]) == pytest.approx(200, rel=0.03)


def test_a_prefix_is_shared_and_the_rest_is_not() -> None:
    plan = plan_synthetic(SyntheticTraffic(2, 10, 4, prefix_tokens=6), rng())
    first, second = (TokenIdWriter(1000, 0).write(request.segments) for request in plan)

    assert len(first) == 16
    assert first[:6] == second[:6]
    assert first[6:] != second[6:]


def test_a_rate_spaces_the_requests() -> None:
    plan = plan_synthetic(SyntheticTraffic(8, 10, 4, rate=2.0), rng())

    assert plan[-1].at_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    "traffic",
    [
        SyntheticTraffic(0, 1, 1),
        SyntheticTraffic(1, 0, 1),
        SyntheticTraffic(1, 1, 0),
        SyntheticTraffic(1, 1, 1, range_ratio=1.5),
        SyntheticTraffic(1, 1, 1, prefix_tokens=-1),
    ],
)
def test_traffic_that_makes_no_request_is_refused(traffic: SyntheticTraffic) -> None:
    with pytest.raises(ConfigurationError):
        plan_synthetic(traffic, rng())


def test_a_trace_keeps_its_blocks_the_last_one_partial() -> None:
    (request,) = plan_trace([TraceEntry(0.0, 600, 5, (8, 9))])

    assert request.segments == (Segment(TRACE_SPACE, 8, 512), Segment(TRACE_SPACE, 9, 88))
    assert request.output_tokens == 5


def test_tokens_beyond_the_known_blocks_are_unique() -> None:
    _, request = plan_trace([TraceEntry(0.0, 1, 1), TraceEntry(1.0, 520, 5, (8,))])

    assert request.segments == (Segment(TRACE_SPACE, 8, 512), Segment(UNIQUE_SPACE, 1, 8))


def test_a_length_scale_shrinks_blocks_too_so_that_prefixes_stay_shared() -> None:
    (request,) = plan_trace([TraceEntry(0.0, 600, 50, (8, 9))], length_scale=0.1)

    assert request.segments == (Segment(TRACE_SPACE, 8, 51), Segment(TRACE_SPACE, 9, 9))
    assert request.output_tokens == 5


def test_a_trace_is_played_at_its_speed_with_its_ticks_spread() -> None:
    entries = [TraceEntry(at, 1, 1) for at in (0.0, 0.0, 3.0)]

    assert [request.at_s for request in plan_trace(entries, speed=2.0)] == [0.0, 0.75, 1.5]


@pytest.mark.parametrize("name", ["speed", "length_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_trace_cannot_be_played_at_a_senseless_scale(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match="above 0 and finite"):
        plan_trace([TraceEntry(0.0, 1, 1)], **{name: value})


def test_a_rate_replaces_the_times_alone() -> None:
    trace = plan_trace([TraceEntry(at, 5, 6) for at in (0.0, 100.0)])

    timed = with_random_arrivals(trace, 2.0, rng())

    assert timed[-1].at_s == pytest.approx(1.0)
    assert [request.segments for request in timed] == [request.segments for request in trace]


def test_a_warmup_is_as_long_shares_nothing_and_answers_shortly() -> None:
    request = PlannedRequest(3.0, (Segment(UNIQUE_SPACE, 0, 40),), 100)

    warmup = warmup_request(request, 0)
    writer = TokenIdWriter(1000, 0)

    assert (warmup.at_s, warmup.input_tokens, warmup.output_tokens) == (0.0, 40, 16)
    assert writer.write(warmup.segments)[:4] != writer.write(request.segments)[:4]
