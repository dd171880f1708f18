"""What benchmarks/placement.py found, and how it is shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from paired import Ratio, half_width_95, paired_ratio
from placement_runs import mean_of
from results_page import table

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import IDEAL, KV_AWARE, FleetSettings

WANTED_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Setting:
    """`seeds` are those that everything was measured with, `resolution` is the highest load's."""

    commit: str
    trace: str
    num_requests: int
    fleet: FleetSettings
    block_size: int
    cost: str
    seeds: Sequence[int]
    resolution: float


@dataclass(frozen=True, slots=True)
class Report:
    """`loads` are the highest ones by policy, for each seed; empty where they were not looked for.

    `measures` are by load, then by policy, for each seed.
    """

    setting: Setting
    loads: dict[str, list[float]]
    measures: dict[float, dict[str, list[Measures]]]

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": asdict(self.setting),
            "max_loads": self.loads,
            "leads": {
                policy: {**asdict(ratio), "verdict": ratio.verdict} for policy, ratio in self.leads().items()
            },
            "at_load": [
                {"load": load, "policy": policy, **asdict(mean_of(found))}
                for load, by_policy in self.measures.items()
                for policy, found in by_policy.items()
            ],
        }

    def leads(self) -> dict[str, Ratio]:
        """How many times the highest load of each other policy KV_AWARE bears, where both bear any."""
        ours = self.loads.get(KV_AWARE, [0.0])
        return {
            policy: paired_ratio(ours, theirs, self.setting.resolution)
            for policy, theirs in self.loads.items()
            if policy != KV_AWARE and min(*ours, *theirs) > 0.0
        }

    def as_markdown(self) -> str:
        parts = [f"## Placement: {self.setting.trace}, simulated", self._preface()]
        if self.loads:
            parts.append(self._loads())
        if verdict := self._verdict():
            parts.append(verdict)
        for load, by_policy in self.measures.items():
            parts += [f"At load {load:g}, the same for all:", _measures(by_policy)]
        return "\n\n".join(parts)

    def _preface(self) -> str:
        setting, fleet = self.setting, self.setting.fleet
        return (
            f"Commit {setting.commit}; {setting.num_requests:,} requests, prefill only, on "
            f"{fleet.num_workers} workers of {fleet.blocks_per_worker:,} blocks of {setting.block_size} "
            f"tokens, {fleet.max_num_batched_tokens:,} tokens a step, cost `{setting.cost}`. In virtual "
            "time, with the engine's scheduler and the mesh's KV index, cost model and placement; this "
            "machine does not matter. Load 1.0 saturates the workers when nothing is cached. The highest "
            f"load is that at which {fleet.promise:.0%} of the requests have their first token within "
            f"{fleet.ttft_limit_s:g} s. All figures are means over {_number(setting.seeds)}, each of which "
            "spreads the trace's arrivals anew within their ticks and rolls other dice; ± is the mean's 95% "
            "confidence interval by Student's t, of ratios those under the same seed. Imbalance is the "
            "busiest worker's time over the mean. The trace names no sessions, so `session` goes by the "
            "prompt's beginning."
        )

    def _loads(self) -> str:
        header = ["policy", "highest load", f"`{KV_AWARE}` bears so many times it", "`kv_aware` is"]
        leads = self.leads()
        rows = [
            [
                f"`{policy}`",
                _with_width(found),
                "–" if policy not in leads else str(leads[policy]),
                "–" if policy not in leads else leads[policy].verdict,
            ]
            for policy, found in self.loads.items()
        ]
        return table(header, rows)

    def _verdict(self) -> str | None:
        """How `kv_aware` stands to the bound, and to all the others."""
        leads = self.leads()
        if IDEAL not in leads or len(leads) == 1:
            return None
        share, least = leads[IDEAL], leads[IDEAL].mean - leads[IDEAL].margin
        behind = [policy for policy, lead in leads.items() if policy != IDEAL and lead.verdict != "ahead"]
        ahead = "every other policy" if not behind else f"all but {', '.join(f'`{one}`' for one in behind)}"
        bracket = max(lead.bracket for policy, lead in leads.items() if policy != IDEAL)
        return (
            f"`{KV_AWARE}` bears {share} of the load of `{IDEAL}`, one cache of the same size for all "
            f"workers without transfers, where {WANTED_SHARE:g} is wanted: "
            f"{'kept' if least >= WANTED_SHARE else 'not shown'}. It is ahead of {ahead} by more than noise: "
            f"ahead means that the interval, widened by the at most {bracket:.3f} that the search for the "
            f"highest load, which ends at {self.setting.resolution:g}, leaves open, lies above 1."
        )


def _measures(by_policy: dict[str, list[Measures]]) -> str:
    header = ["policy", "hit rate", "TTFT mean, s", "p50", "p99", "in time", "imbalance"]
    ours = by_policy.get(KV_AWARE)
    if ours is not None:
        header += ["mean / `kv_aware`'s", "p50 /", "p99 /"]
    return table(header, [_row(policy, found, ours) for policy, found in by_policy.items()])


def _row(policy: str, found: list[Measures], ours: list[Measures] | None) -> list[str]:
    mean = mean_of(found)
    cells = [
        f"`{policy}`",
        f"{mean.hit_rate:.1%}",
        f"{mean.ttft_mean_s:.2f}",
        f"{mean.ttft_p50_s:.2f}",
        f"{mean.ttft_p99_s:.2f}",
        f"{mean.within_limit:.1%}",
        f"{mean.imbalance:.2f}",
    ]
    return cells if ours is None else cells + _times_ours(policy, found, ours)


def _times_ours(policy: str, found: list[Measures], ours: list[Measures]) -> list[str]:
    if policy == KV_AWARE:
        return ["–"] * 3
    names = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s")
    return [str(_ratio(name, found, ours)) for name in names]


def _ratio(name: str, found: list[Measures], ours: list[Measures]) -> Ratio:
    return paired_ratio([getattr(one, name) for one in found], [getattr(one, name) for one in ours])


def _with_width(values: Sequence[float]) -> str:
    width = half_width_95(values)
    return f"{fmean(values):.3f}" + ("" if width is None else f" ± {width:.3f}")


def _number(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
