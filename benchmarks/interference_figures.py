"""From the moments of tokens to figures; pure.

A gap between two tokens of a stream is *reading* when it overlaps the wait of a long prompt for its first
token, and *idle* when it overlaps no long prompt's life at all. Percentiles over a whole run would hide what
is looked for: a stall of seconds is one gap among thousands of short ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import fmean, median
from typing import Protocol

from atomesh.bench.statistics import percentile

WORST = frozenset({"reading_max_s", "ttft_beside_max_s", "generator_share"})


class Timed(Protocol):
    """An answer's moments; see interference_load.Answer."""

    prompt_tokens: int
    sent_at: float
    token_at: list[float]
    serving_path: str

    @property
    def ttft_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two tokens of one stream."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def overlaps(self, spans: Iterable[tuple[float, float]]) -> bool:
        return any(self.start < end and start < self.end for start, end in spans)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run of one shape, or what several come to: seconds, and tokens a second of all streams together.

    `second_token_s` is how long after its first a long prompt's second token comes: across a hand-off, where
    there is one. `total_tokens_s` counts prompt and stream tokens from the first long prompt's arrival to the
    last one's first token.
    """

    idle_p50_s: float
    idle_p99_s: float
    reading_p50_s: float
    reading_p99_s: float
    reading_max_s: float
    idle_tokens_s: float
    reading_tokens_s: float
    total_tokens_s: float
    ttft_alone_s: float
    ttft_beside_s: float
    ttft_beside_max_s: float
    second_token_s: float
    generator_share: float

    @property
    def slowdown(self) -> float:
        """By how much reading a long prompt raises the streams' p99."""
        return self.reading_p99_s / self.idle_p99_s


def figures_of(
    alone: Sequence[Timed],
    streams: Sequence[Timed],
    prompts: Sequence[Timed],
    window: tuple[float, float],
    generator_share: float,
) -> Figures:
    """`window` is when the streams ran steadily. Raises ValueError if a kind of gap never occurred."""
    gaps = list(gaps_within(streams, window))
    waits, lives = spans_of_waits(prompts), [(p.sent_at, p.token_at[-1]) for p in prompts]
    idle = sorted(gap.seconds for gap in gaps if not gap.overlaps(lives))
    reading = sorted(gap.seconds for gap in gaps if gap.overlaps(waits))
    if not idle or not reading:
        raise ValueError(f"{len(idle)} idle and {len(reading)} reading gaps; both are needed")
    first, last = min(start for start, _ in waits), max(end for _, end in waits)
    tokens = sum(p.prompt_tokens for p in prompts) + sum(
        first < at <= last for s in streams for at in s.token_at
    )
    ttfts = [p.ttft_s for p in prompts]
    return Figures(
        idle_p50_s=percentile(idle, 50),
        idle_p99_s=percentile(idle, 99),
        reading_p50_s=percentile(reading, 50),
        reading_p99_s=percentile(reading, 99),
        reading_max_s=reading[-1],
        idle_tokens_s=len(streams) / fmean(idle),
        reading_tokens_s=len(streams) / fmean(reading),
        total_tokens_s=tokens / (last - first),
        ttft_alone_s=median(p.ttft_s for p in alone),
        ttft_beside_s=median(ttfts),
        ttft_beside_max_s=max(ttfts),
        second_token_s=median(p.token_at[1] - p.token_at[0] for p in prompts),
        generator_share=generator_share,
    )


def over_rounds(rounds: Sequence[Figures]) -> Figures:
    """Medians; of what is a maximum already, the largest."""
    names = [field.name for field in fields(Figures)]
    return Figures(
        **{name: (max if name in WORST else median)(getattr(one, name) for one in rounds) for name in names}
    )


def gaps_within(streams: Sequence[Timed], window: tuple[float, float]) -> Iterator[Gap]:
    for stream in streams:
        for start, end in pairwise(stream.token_at):
            if window[0] <= start and end <= window[1]:
                yield Gap(start, end)


def spans_of_waits(prompts: Sequence[Timed]) -> list[tuple[float, float]]:
    return [(p.sent_at, p.token_at[0]) for p in prompts]


def count_paths(answers: Iterable[Timed]) -> Counter[str]:
    """How the server says that it served them."""
    return Counter(answer.serving_path for answer in answers)
