from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.mesh.placement.non_negative import solve_non_negative

VALUES = st.integers(-5, 5)


def normal_equations(rows: list[list[int]], targets: list[int]) -> tuple[list[list[float]], list[float]]:
    """With a ridge, so that there is one solution."""
    size = range(len(rows[0]))
    gram = [[float(sum(r[j] * r[k] for r in rows)) + (0.5 if j == k else 0.0) for k in size] for j in size]
    return gram, [float(sum(r[j] * t for r, t in zip(rows, targets, strict=True))) for j in size]


def objective(gram: list[list[float]], moment: list[float], x: list[float]) -> float:
    size = range(len(x))
    quadratic = sum(x[j] * gram[j][k] * x[k] for j in size for k in size)
    return quadratic - 2 * sum(moment[j] * x[j] for j in size)


def test_exact_where_nothing_is_bound() -> None:
    assert solve_non_negative([[2.0, 0.0], [0.0, 4.0]], [2.0, 2.0]) == [1.0, 0.5]


def test_a_coefficient_that_wants_to_be_negative_is_zero_and_the_other_fits_alone() -> None:
    assert solve_non_negative([[1.0, 0.5], [0.5, 1.0]], [1.0, -1.0]) == [1.0, 0.0]
    assert solve_non_negative([[1.0, 0.0], [0.0, 1.0]], [-1.0, -1.0]) == [0.0, 0.0]


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(VALUES, min_size=n + 1, max_size=n + 1),
                                                    min_size=1, max_size=8)))  # fmt: skip
def test_no_choice_of_bound_coefficients_is_better(samples: list[list[int]]) -> None:
    gram, moment = normal_equations([row[:-1] for row in samples], [row[-1] for row in samples])
    found = solve_non_negative(gram, moment)
    assert min(found) >= 0.0
    best = objective(gram, moment, found)
    size = len(moment)
    for count in range(1, size + 1):
        for free in combinations(range(size), count):
            inner = solve_non_negative([[gram[j][k] for k in free] for j in free], [moment[j] for j in free])
            point = [0.0] * size
            for j, value in zip(free, inner, strict=True):
                point[j] = value
            assert best <= objective(gram, moment, point) + 1e-9
    pull = [moment[j] - sum(gram[j][k] * found[k] for k in range(size)) for j in range(size)]
    for value, force in zip(found, pull, strict=True):
        assert force == pytest.approx(0.0, abs=1e-6) if value > 0 else force <= 1e-6
