"""What to send and when: synthetic or recorded traffic as a list of planned requests; pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from atomesh.bench.arrivals import random_arrivals, spread_ties
from atomesh.bench.prompts import Segment
from atomesh.bench.trace import MOONCAKE_BLOCK_TOKENS, TraceEntry
from atomesh.errors import ConfigurationError

PREFIX_SPACE, UNIQUE_SPACE, TRACE_SPACE, WARMUP_SPACE = range(4)
CONVERSATION_SIGMA = 1.0
WARMUP_OUTPUT_TOKENS = 16
LengthKind = Literal["random", "conversation"]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`at_s` counts from the start of the run. The prompt is written from its segments when it is sent."""

    at_s: float
    segments: tuple[Segment, ...]
    output_tokens: int

    @property
    def input_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SyntheticTraffic:
    """Lengths in tokens. `random`: uniform between (1 − range_ratio) and (1 + range_ratio) times the length.

    `conversation`: log-normal around the length as mean, as chats are (sigma 1: the median is 0.6 of the
    mean, one in ten is more than 2.2 times it). `prefix_tokens` come before all prompts, the same for each.
    """

    count: int
    input_tokens: int
    output_tokens: int
    kind: LengthKind = "random"
    range_ratio: float = 0.0
    prefix_tokens: int = 0
    rate: float = math.inf
    burstiness: float = 1.0


def plan_synthetic(traffic: SyntheticTraffic, rng: np.random.Generator) -> list[PlannedRequest]:
    """Raises ConfigurationError on a length, count or ratio that makes no request."""
    _check_synthetic(traffic)
    inputs = _lengths(traffic, traffic.input_tokens, rng)
    outputs = _lengths(traffic, traffic.output_tokens, rng)
    times = random_arrivals(traffic.count, traffic.rate, rng, burstiness=traffic.burstiness)
    prefix = (Segment(PREFIX_SPACE, 0, traffic.prefix_tokens),) if traffic.prefix_tokens else ()
    return [
        PlannedRequest(at, (*prefix, Segment(UNIQUE_SPACE, index, size)), output)
        for index, (at, size, output) in enumerate(zip(times, inputs, outputs, strict=True))
    ]


def plan_trace(
    entries: Sequence[TraceEntry], *, speed: float = 1.0, length_scale: float = 1.0
) -> list[PlannedRequest]:
    """The trace's arrivals `speed` times as fast, its lengths times `length_scale` (at least one token each).

    Entries that share prefix ids share the same first tokens, block by block.
    """
    for name, value in (("trace speed", speed), ("length scale", length_scale)):
        if not 0 < value < math.inf:
            raise ConfigurationError(f"the {name} is {value}; it must be above 0 and finite")
    times = spread_ties([entry.at_s for entry in entries])
    return [
        PlannedRequest(
            at / speed,
            tuple(_trace_segments(entry, index, length_scale)),
            max(1, round(entry.output_tokens * length_scale)),
        )
        for index, (at, entry) in enumerate(zip(times, entries, strict=True))
    ]


def with_random_arrivals(
    requests: Sequence[PlannedRequest], rate: float, rng: np.random.Generator, *, burstiness: float = 1.0
) -> list[PlannedRequest]:
    """The same requests in the same order, at `rate` requests/s in place of their own times."""
    times = random_arrivals(len(requests), rate, rng, burstiness=burstiness)
    return [replace(request, at_s=at) for request, at in zip(requests, times, strict=True)]


def warmup_request(like: PlannedRequest, index: int) -> PlannedRequest:
    """A prompt as long as that of `like`, of tokens that no measured prompt begins with: no cache is warmed.

    Its answer is short: what a first request has to set up is in its first steps.
    """
    output_tokens = min(like.output_tokens, WARMUP_OUTPUT_TOKENS)
    return PlannedRequest(0.0, (Segment(WARMUP_SPACE, index, like.input_tokens),), output_tokens)


def _trace_segments(entry: TraceEntry, index: int, scale: float) -> Iterator[Segment]:
    left = max(1, round(entry.input_tokens * scale))
    block = max(1, round(MOONCAKE_BLOCK_TOKENS * scale))
    for key in entry.prefix_ids:
        size = min(block, left)
        if size:
            yield Segment(TRACE_SPACE, key, size)
        left -= size
    if left:
        yield Segment(UNIQUE_SPACE, index, left)


def _lengths(traffic: SyntheticTraffic, mean: int, rng: np.random.Generator) -> list[int]:
    if traffic.kind == "random":
        low = max(1, math.floor(mean * (1 - traffic.range_ratio)))
        high = max(low, math.ceil(mean * (1 + traffic.range_ratio)))
        drawn: list[int] = rng.integers(low, high, size=traffic.count, endpoint=True).tolist()
        return drawn
    mu = math.log(mean) - CONVERSATION_SIGMA**2 / 2
    return [max(1, round(value)) for value in rng.lognormal(mu, CONVERSATION_SIGMA, traffic.count).tolist()]


def _check_synthetic(traffic: SyntheticTraffic) -> None:
    least = {"number of prompts": traffic.count, "input length": traffic.input_tokens}
    least["output length"] = traffic.output_tokens
    for name, value in least.items():
        if value < 1:
            raise ConfigurationError(f"the {name} is {value}; it must be at least 1")
    if not 0 <= traffic.range_ratio <= 1:
        raise ConfigurationError(f"the range ratio is {traffic.range_ratio}; it must lie in [0, 1]")
    if traffic.prefix_tokens < 0:
        raise ConfigurationError(f"the prefix length is {traffic.prefix_tokens}; it cannot be negative")
