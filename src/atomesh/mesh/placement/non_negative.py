"""Least squares without negative coefficients, on the normal equations of a handful of features.

The active-set method of Lawson and Hanson ("Solving Least Squares Problems", 1974, chapter 23).
"""

from collections.abc import Sequence

_TOLERANCE = 1e-12

Matrix = Sequence[Sequence[float]]


def solve_non_negative(gram: Matrix, moment: Sequence[float]) -> list[float]:
    """The x ≥ 0 with the least xᵀGx − 2hᵀx; `gram` G is positive definite, `moment` is h."""
    size = len(moment)
    free = list(range(size))
    found = _solve(gram, moment, free)
    if min(found) > 0.0:
        return found
    point, free = [0.0] * size, []
    for _ in range(3 * size):
        pull = [moment[j] - sum(gram[j][k] * point[k] for k in free) for j in range(size)]
        bound = [j for j in range(size) if j not in free]
        best = max(bound, key=pull.__getitem__, default=None)
        if best is None or pull[best] <= _TOLERANCE * (abs(moment[best]) + 1.0):
            break
        point, free = _descend(gram, moment, point, [*free, best])
    return point


def _descend(
    gram: Matrix, moment: Sequence[float], point: list[float], free: list[int]
) -> tuple[list[float], list[int]]:
    """To the minimum over the `free` coefficients, giving up those that would become negative on the way."""
    while free:
        goal = _solve(gram, moment, free)
        blocked = [j for j in free if goal[j] <= 0.0]
        if not blocked:
            return goal, free
        step = min(point[j] / (point[j] - goal[j]) if point[j] > 0.0 else 0.0 for j in blocked)
        point = [here + step * (there - here) for here, there in zip(point, goal, strict=True)]
        given_up = {j for j in blocked if point[j] <= _TOLERANCE}
        free = [j for j in free if j not in given_up]
        point = [value if j in free else 0.0 for j, value in enumerate(point)]
    return point, free


def _solve(gram: Matrix, moment: Sequence[float], free: Sequence[int]) -> list[float]:
    """Of the equations of the `free` coefficients alone, by Gauss; the others are 0."""
    rows = [[gram[j][k] for k in free] + [moment[j]] for j in free]
    size = len(rows)
    for pivot in range(size):
        row = rows[pivot]
        for below in rows[pivot + 1 :]:
            factor = below[pivot] / row[pivot]
            for column in range(pivot, size + 1):
                below[column] -= factor * row[column]
    result = [0.0] * len(moment)
    for pivot in reversed(range(size)):
        row = rows[pivot]
        known = sum(row[column] * result[free[column]] for column in range(pivot + 1, size))
        result[free[pivot]] = (row[size] - known) / row[pivot]
    return result
