"""Traffic for the simulator: who arrives when, with which blocks, at which load."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from atomesh.errors import ConfigurationError
from atomesh.mesh.placement.costs import StepCosts


@dataclass(frozen=True, slots=True)
class Arrival:
    """`block_ids` names each block together with all before it; the last one may be partial."""

    at_s: float
    num_tokens: int
    block_ids: tuple[int, ...]

    def at(self, at_s: float) -> "Arrival":
        """The same at another time."""
        return Arrival(at_s, self.num_tokens, self.block_ids)


@dataclass(frozen=True, slots=True)
class Workload:
    """In order of arrival. `block_size` is in tokens."""

    arrivals: tuple[Arrival, ...]
    block_size: int

    @property
    def duration_s(self) -> float:
        return self.arrivals[-1].at_s

    @property
    def max_tokens(self) -> int:
        return max(arrival.num_tokens for arrival in self.arrivals)

    def load(self, costs: StepCosts, num_workers: int) -> float:
        """What share of `num_workers` workers' time it would take without any cache, one prompt a step."""
        work = sum(costs.fixed_s + costs.tokens_s(arrival.num_tokens, 0) for arrival in self.arrivals)
        return work / (num_workers * self.duration_s)

    def at_load(self, load: float, costs: StepCosts, num_workers: int) -> "Workload":
        """The same requests, faster or slower; 1.0 saturates `num_workers` workers without any cache."""
        scale = self.load(costs, num_workers) / load
        return replace(self, arrivals=tuple(a.at(a.at_s * scale) for a in self.arrivals))


def make_workload(arrivals: Iterable[Arrival], block_size: int, rng: Random) -> Workload:
    """Arrivals of equal times are spread over the time up to the next; see `spread`.

    Raises ConfigurationError for traffic that takes no time, or whose blocks do not go with its lengths.
    """
    ordered = sorted(arrivals, key=lambda arrival: arrival.at_s)
    for arrival in ordered:
        if len(arrival.block_ids) != -(-arrival.num_tokens // block_size):
            raise ConfigurationError(
                f"a prompt of {arrival.num_tokens} tokens has {len(arrival.block_ids)} block ids, "
                f"which do not go with blocks of {block_size} tokens; choose the block size of the trace"
            )
    times = spread([arrival.at_s for arrival in ordered], rng)
    if not times or times[-1] <= 0:
        raise ConfigurationError("the traffic takes no time; give at least two arrivals at different times")
    moved = [arrival.at(time) for arrival, time in zip(ordered, times, strict=True)]
    return Workload(tuple(moved), block_size)


def spread(times: Sequence[float], rng: Random) -> list[float]:
    """Ascending times; those that are equal lie at random before the next later one.

    A trace's clock ticks coarsely, and a tick's requests would be a burst that never was. The last tick is
    taken to be as long as the one before it.
    """
    ticks = sorted(set(times))
    widths = [later - earlier for earlier, later in pairwise(ticks)]
    width_of = dict(zip(ticks, [*widths, widths[-1] if widths else 0.0], strict=True))
    return sorted(time + width_of[time] * rng.random() for time in times)
