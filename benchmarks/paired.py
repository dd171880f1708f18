"""How far one is ahead of another: ratios of pairs measured under the same draw, and their spread."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

# Student's t, two-sided 95 %, by degrees of freedom from 1 on; with more, the last is a little too wide.
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


@dataclass(frozen=True, slots=True)
class Ratio:
    """`half_width` is that of the mean's 95 % confidence interval, None of a single pair.

    `bracket` is how far the mean may be off because each of the two is only known to some resolution.
    """

    mean: float
    half_width: float | None
    bracket: float = 0.0

    @property
    def verdict(self) -> str:
        """Whether the interval, widened by the bracket, excludes 1."""
        if self.half_width is None:
            return "one draw tells nothing"
        if self.mean - self.margin > 1.0:
            return "ahead"
        return "behind" if self.mean + self.margin < 1.0 else "not told apart"

    @property
    def margin(self) -> float:
        """Of the interval, widened by the bracket."""
        return (self.half_width or 0.0) + self.bracket

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.half_width is None else f" ± {self.half_width:.3f}")


def half_width_95(values: Sequence[float]) -> float | None:
    """Of the mean's confidence interval, by Student's t; None of a single value."""
    if len(values) < 2:
        return None
    t = _T_95[min(len(values) - 1, len(_T_95)) - 1]
    return t * stdev(values) / sqrt(len(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], resolution: float = 0.0) -> Ratio:
    """Of each of `ours` to the one of `theirs` at the same place; all of them are above 0.

    Each value is the lower end of an interval that is `resolution` wide, in which the true one lies.
    """
    pairs = list(zip(ours, theirs, strict=True))
    widths = [(a + resolution) / b - a / (b + resolution) for a, b in pairs]
    ratios = [a / b for a, b in pairs]
    return Ratio(fmean(ratios), half_width_95(ratios), fmean(widths) / 2)
