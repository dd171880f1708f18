"""What a simulated run showed."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from atomesh.bench.statistics import percentile


@dataclass(frozen=True, slots=True)
class Measures:
    """`hit_rate` is the share of prompt tokens found in a cache, `imbalance` the busiest worker's time over
    the mean. Seconds from a request's arrival at the gateway to its first token; `within_limit` is the share
    of requests that had it in time."""

    num_requests: int
    hit_rate: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    within_limit: float
    imbalance: float


def measure(
    ttfts: Sequence[float], hit_rate: float, busy_s: Sequence[float], ttft_limit_s: float
) -> Measures:
    """Of at least one request on at least one worker."""
    ordered = sorted(ttfts)
    return Measures(
        num_requests=len(ordered),
        hit_rate=hit_rate,
        ttft_mean_s=fmean(ordered),
        ttft_p50_s=percentile(ordered, 50),
        ttft_p99_s=percentile(ordered, 99),
        within_limit=sum(ttft <= ttft_limit_s for ttft in ordered) / len(ordered),
        imbalance=max(busy_s) / fmean(busy_s),
    )
