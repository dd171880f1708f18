import math

import numpy as np
import pytest

from atomesh.bench.arrivals import random_arrivals, spread_ties
from atomesh.errors import ConfigurationError


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_arrivals_ascend_and_the_last_is_at_count_over_rate() -> None:
    times = random_arrivals(100, 4.0, rng())

    assert times == sorted(times)
    assert times[-1] == pytest.approx(25.0)
    assert times[0] > 0


def test_gaps_of_a_poisson_process_have_a_coefficient_of_variation_of_one() -> None:
    gaps = np.diff(random_arrivals(20_000, 10.0, rng()))

    assert gaps.mean() == pytest.approx(0.1, rel=0.001)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (4.0, 0.5)])
def test_burstiness_shapes_the_gaps(burstiness: float, variation: float) -> None:
    gaps = np.diff(random_arrivals(20_000, 10.0, rng(), burstiness=burstiness))

    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert random_arrivals(3, math.inf, rng()) == [0.0, 0.0, 0.0]


def test_no_requests_have_no_arrivals() -> None:
    assert random_arrivals(0, 1.0, rng()) == []


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0)])
def test_rate_and_burstiness_must_be_above_zero(rate: float, burstiness: float) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0"):
        random_arrivals(3, rate, rng(), burstiness=burstiness)


def test_ties_are_spread_up_to_the_next_tick_and_the_last_tick_is_as_long_as_the_one_before() -> None:
    assert spread_ties([0, 0, 0, 3, 5, 5]) == [0, 1, 2, 3, 5, 6]


def test_distinct_times_stay() -> None:
    assert spread_ties([0.0, 0.5, 2.0]) == [0.0, 0.5, 2.0]


def test_one_tick_alone_stays() -> None:
    assert spread_ties([1.0, 1.0]) == [1.0, 1.0]
