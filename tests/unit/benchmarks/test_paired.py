"""Ratios of pairs, and what may be said of them."""

import pytest
from paired import Ratio, half_width_95, paired_ratio


def test_the_interval_is_students() -> None:
    """Of 1, 2 and 3 the standard deviation is 1; t with two degrees of freedom is 4.303."""
    assert half_width_95([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert half_width_95([5.0, 5.0, 5.0, 5.0]) == 0.0
    assert half_width_95([1.0]) is None


def test_with_many_values_the_interval_is_rather_too_wide() -> None:
    values = [0.0, 1.0] * 50
    assert half_width_95(values) == pytest.approx(2.145 * 0.50252 / 10, rel=1e-4)


def test_a_common_draw_cancels_out() -> None:
    """The two swing between 1 and 2 together, and one is always half as much again."""
    found = paired_ratio([1.5, 3.0, 2.25], [1.0, 2.0, 1.5])

    assert (found.mean, found.half_width) == pytest.approx((1.5, 0.0))
    assert str(found) == "1.500 ± 0.000"


def test_the_bracket_is_half_of_what_the_ends_allow() -> None:
    """Ours lies between 1.0 and 1.1, theirs too: their ratio between 1/1.1 and 1.1."""
    found = paired_ratio([1.0, 1.0], [1.0, 1.0], resolution=0.1)

    assert found.bracket == pytest.approx((1.1 - 1 / 1.1) / 2)


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(1.05, 0.03, 0.01), "ahead"),
        (Ratio(1.05, 0.03, 0.03), "not told apart"),
        (Ratio(0.95, 0.03, 0.01), "behind"),
        (Ratio(0.95, 0.03, 0.03), "not told apart"),
        (Ratio(1.5, None, 0.0), "one draw tells nothing"),
    ],
)
def test_ahead_is_said_only_where_the_widened_interval_excludes_1(ratio: Ratio, verdict: str) -> None:
    assert ratio.verdict == verdict
