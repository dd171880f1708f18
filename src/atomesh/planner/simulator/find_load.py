"""The highest load that still keeps a promise."""

from collections.abc import Callable

LOWEST = 0.05
HIGHEST = 4.0


def find_max_load(keeps: Callable[[float], bool], tolerance: float = 0.01, guess: float = 1.0) -> float:
    """The highest load between LOWEST and HIGHEST that `keeps`, within `tolerance`, by halving.

    Takes for granted that what is kept at one load is kept at every lower one. 0.0 when not even LOWEST is.
    """
    low, high = _bracket(keeps, guess)
    while high - low > tolerance:
        middle = (low + high) / 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low if low >= LOWEST else 0.0


def _bracket(keeps: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """A load that is kept, or 0, and one that is not, or HIGHEST, not far apart."""
    if keeps(guess):
        low = guess
        while low < HIGHEST:
            high = min(low * 1.25, HIGHEST)
            if not keeps(high):
                return low, high
            low = high
        return HIGHEST, HIGHEST
    high = guess
    while high > LOWEST:
        low = max(high / 1.6, LOWEST)
        if keeps(low):
            return low, high
        high = low
    return 0.0, 0.0
