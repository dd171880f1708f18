"""Traffic: spread within a trace's ticks, and scaled to a load."""

from random import Random

import pytest

from atomesh.errors import ConfigurationError
from atomesh.mesh.placement.costs import StepCosts
from atomesh.planner.simulator.workload import Arrival, make_workload, spread

ONE_SECOND_EACH = StepCosts(1.0, 0.0, 0.0, 0.0, 0.0)


def test_equal_times_lie_before_the_next_later_one() -> None:
    times = [0.0, 0.0, 3.0, 3.0, 3.0, 4.0, 4.0]

    moved = spread(times, Random(1))

    assert moved == sorted(moved)
    assert [int(time >= 3.0) + int(time >= 4.0) for time in moved] == [0, 0, 1, 1, 1, 2, 2]
    assert moved[-1] < 5.0
    assert len(set(moved)) == 7
    assert moved == spread(times, Random(1)) != spread(times, Random(2))


def test_one_tick_alone_stays_where_it_is() -> None:
    assert spread([2.0, 2.0], Random(0)) == [2.0, 2.0]


def test_load_one_takes_all_the_time_there_is() -> None:
    arrivals = [Arrival(at, 4, (0,)) for at in (0.0, 1.0, 2.0, 4.0)]
    workload = make_workload(arrivals, 4, Random(0))

    half = workload.at_load(0.5, ONE_SECOND_EACH, num_workers=2)

    assert half.load(ONE_SECOND_EACH, 2) == pytest.approx(0.5)
    assert half.duration_s == pytest.approx(4.0)  # four seconds of work, for two workers, half idle
    assert [a.at_s / half.duration_s for a in half.arrivals] == pytest.approx(
        [a.at_s / workload.duration_s for a in workload.arrivals]
    )


def test_traffic_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least two arrivals at different times"):
        make_workload([Arrival(0.0, 4, (0,))], 4, Random(0))


def test_the_block_size_has_to_be_that_of_the_ids() -> None:
    with pytest.raises(
        ConfigurationError, match="a prompt of 9 tokens has 2 block ids, which do not go with blocks of 4"
    ):
        make_workload([Arrival(0.0, 9, (0, 1)), Arrival(1.0, 4, (0,))], 4, Random(0))
