"""The highest load that still keeps a promise."""

from collections.abc import Callable

LOWEST = 0.05
HIGHEST = 16.0
FIRST_STEP = 0.2


def find_max_load(
    keeps: Callable[[float], bool], resolution: float = 0.01, guess: float = 1.0, step: float = FIRST_STEP
) -> float:
    """The highest load between LOWEST and HIGHEST that `keeps`, to less than `resolution` below it.

    Steps away from `guess`, each twice as long as the one before, until one load is kept and another is not,
    and halves what lies between them. Takes for granted that what is kept at one load is kept at every lower
    one. 0.0 when not even LOWEST is.
    """
    low, high = _bracket(keeps, min(max(guess, LOWEST), HIGHEST), step)
    while high - low > resolution:
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def _bracket(keeps: Callable[[float], bool], guess: float, step: float) -> tuple[float, float]:
    """A load that is kept and one that is not; the same twice where there is no such pair."""
    if keeps(guess):
        low = guess
        while low < HIGHEST:
            high = min(low + step, HIGHEST)
            if not keeps(high):
                return low, high
            low, step = high, 2 * step
        return HIGHEST, HIGHEST
    high = guess
    while high > LOWEST:
        low = max(high - step, LOWEST)
        if keeps(low):
            return low, high
        high, step = low, 2 * step
    return 0.0, 0.0
