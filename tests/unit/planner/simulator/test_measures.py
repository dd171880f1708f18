"""A run's figures."""

import pytest

from atomesh.planner.simulator.measures import Measures, measure


def test_figures_of_a_run() -> None:
    found = measure([4.0, 1.0, 2.0, 6.0, 3.0], hit_rate=0.25, busy_s=[1.0, 3.0], ttft_limit_s=4.0)

    assert found == Measures(
        num_requests=5,
        hit_rate=0.25,
        ttft_mean_s=3.2,
        ttft_p50_s=3.0,
        ttft_p99_s=pytest.approx(5.92),
        within_limit=0.8,
        imbalance=1.5,
    )
