"""What benchmarks/routing.py found, and how it is shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from results_page import table
from routing_engine import EngineFigures

from atomesh.bench.statistics import percentile


@dataclass(frozen=True, slots=True)
class RoutingFound:
    """One run through one gateway; seconds. `ttfts` are the client's, `cpu_s` is the gateway's in all."""

    name: str
    engines: Sequence[EngineFigures]
    ttfts: Sequence[float]
    cpu_s: float

    @property
    def hit_rate(self) -> float:
        """Of prompt tokens."""
        prompt = sum(engine.prompt_tokens for engine in self.engines)
        return sum(engine.cached_tokens for engine in self.engines) / prompt

    @property
    def imbalance(self) -> float:
        """The busiest engine's time over the mean."""
        busy = [engine.busy_s for engine in self.engines]
        return max(busy) / fmean(busy)

    @property
    def engine_ttfts(self) -> list[float]:
        """From a request's arrival at its engine on."""
        return [ttft for engine in self.engines for ttft in engine.ttfts]

    @property
    def late_s(self) -> float:
        """By how much a prefill ended too late in the mean, since the engines had no core."""
        return sum(engine.late_s for engine in self.engines) / len(self.engine_ttfts)

    @property
    def added_s(self) -> float:
        """What the client sees beyond what the engines took, in the mean; waiting in the gateway included."""
        return fmean(self.ttfts) - fmean(self.engine_ttfts)


@dataclass(frozen=True, slots=True)
class Setting:
    """`load` 1 saturates the engines when nothing is cached; `ideal` is the hit rate of one shared cache."""

    commit: str
    machine: str
    trace: str
    num_requests: int
    seconds: float
    mean_tokens: float
    num_engines: int
    blocks_per_engine: int
    block_size: int
    token_s: float
    load: float
    ideal: float
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    setting: Setting
    found: list[RoutingFound]

    def as_json(self) -> dict[str, Any]:
        runs = [
            {
                **asdict(one),
                "hit_rate": one.hit_rate,
                "imbalance": one.imbalance,
                "added_s": one.added_s,
            }
            for one in self.found
        ]
        return {"setting": asdict(self.setting), "found": runs}

    def as_markdown(self) -> str:
        return "\n\n".join([f"## Routing, live: {self.setting.trace}", self._preface(), self._table()])

    def _preface(self) -> str:
        setting = self.setting
        others = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
        return (
            f"Commit {setting.commit}; {setting.machine}. {setting.num_requests:,} chats of "
            f"{setting.mean_tokens:.0f} tokens in the mean within {setting.seconds:.0f} s, with the trace's "
            "arrivals and shared prefixes, both scaled down, through each gateway in turn to the same "
            f"{setting.num_engines} mock vLLM servers. Each has a prefix cache of "
            f"{setting.blocks_per_engine:,} blocks of {setting.block_size} tokens, the least recently used "
            f"going first, and prefills one prompt at a time, {setting.token_s * 1e6:.0f} µs a token that is "
            f"not cached: load {setting.load:g}, where 1 saturates them with nothing cached. An answer is "
            "one token. One cache as large as all of them together, before all, would hit "
            f"{setting.ideal:.1%}. Hit rate, busy time and the engines' TTFT are counted in the engines; "
            "*added* is the client's mean TTFT less theirs, so it holds what a request waits in a gateway. "
            "Engines that are late in the mean by more than a few ms say that the machine had other work, "
            "and that a run is void. The gateway has one core, all else the "
            f"other. Others: {others or 'none'}."
        )

    def _table(self) -> str:
        header = ["gateway, policy", "hit rate", "of the ideal", "TTFT mean, ms", "p50", "p99"]
        header += ["added, ms", "engines late, ms", "imbalance", "gateway's CPU, µs a request"]
        return table(header, [self._row(one) for one in self.found])

    def _row(self, one: RoutingFound) -> list[str]:
        ordered = sorted(one.ttfts)
        return [
            one.name,
            f"{one.hit_rate:.1%}",
            f"{one.hit_rate / self.setting.ideal:.0%}",
            f"{fmean(ordered) * 1e3:.1f}",
            f"{percentile(ordered, 50) * 1e3:.1f}",
            f"{percentile(ordered, 99) * 1e3:.1f}",
            f"{one.added_s * 1e3:.1f}",
            f"{one.late_s * 1e3:.1f}",
            f"{one.imbalance:.2f}",
            f"{one.cpu_s / len(ordered) * 1e6:.0f}",
        ]
