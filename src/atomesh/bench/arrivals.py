"""When requests arrive, in seconds from the start of a run; pure."""

from collections.abc import Sequence

import numpy as np

from atomesh.errors import ConfigurationError


def random_arrivals(
    count: int, rate: float, rng: np.random.Generator, *, burstiness: float = 1.0
) -> list[float]:
    """`count` ascending times at a mean of `rate` requests/s; an infinite rate is all at once.

    Gaps follow a gamma distribution of shape `burstiness`: 1 is a Poisson process, less is burstier, more
    is steadier. As in vllm bench, the times are scaled so that the last arrives at exactly count / rate:
    runs with other seeds then offer the same load. Raises ConfigurationError unless both are above 0.
    """
    for name, value in (("request rate", rate), ("burstiness", burstiness)):
        if not value > 0:
            raise ConfigurationError(f"the {name} is {value}; it must be above 0")
    if count == 0 or np.isinf(rate):
        return [0.0] * count
    times = np.cumsum(rng.gamma(shape=burstiness, scale=1.0, size=count))
    scaled: list[float] = (times * (count / rate / times[-1])).tolist()
    return scaled


def spread_ties(times: Sequence[float]) -> list[float]:
    """Ascending times with those that are equal spread evenly up to the next later one.

    Traces are recorded in coarse ticks; sent as they stand, each tick would be a burst that never was.
    The last tick is taken to be as long as the one before it.
    """
    spread: list[float] = []
    start = 0
    width = 0.0
    while start < len(times):
        end = start
        while end < len(times) and times[end] == times[start]:
            end += 1
        if end < len(times):
            width = times[end] - times[start]
        count = end - start
        spread += [times[start] + width * index / count for index in range(count)]
        start = end
    return spread
