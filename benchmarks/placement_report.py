"""What benchmarks/placement.py found, and how it is shown."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from results_page import table

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import IDEAL, KV_AWARE, FleetSettings

NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Setting:
    """`load` is where hits and times were taken."""

    commit: str
    trace: str
    num_requests: int
    fleet: FleetSettings
    block_size: int
    cost: str
    load: float


@dataclass(frozen=True, slots=True)
class PolicyFound:
    """`max_load` is None when it was not looked for."""

    policy: str
    max_load: float | None
    measures: Measures


@dataclass(frozen=True, slots=True)
class SeedCheck:
    """The highest loads of a few policies with another seed: what of a lead is the draw of arrivals."""

    seed: int
    loads: dict[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    setting: Setting
    found: list[PolicyFound]
    checks: list[SeedCheck] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        policies = [
            {"policy": one.policy, "max_load": one.max_load, **asdict(one.measures)} for one in self.found
        ]
        return {
            "setting": asdict(self.setting),
            "policies": policies,
            "checks": [asdict(one) for one in self.checks],
        }

    def as_markdown(self) -> str:
        parts = [f"## Placement: {self.setting.trace}, simulated", self._preface(), self._table()]
        if verdict := self._verdict():
            parts.append(verdict)
        return "\n\n".join(parts)

    def _preface(self) -> str:
        setting, fleet = self.setting, self.setting.fleet
        return (
            f"Commit {setting.commit}; {setting.num_requests:,} requests, prefill only, on "
            f"{fleet.num_workers} workers of {fleet.blocks_per_worker:,} blocks of {setting.block_size} "
            f"tokens, {fleet.max_num_batched_tokens:,} tokens a step, cost `{setting.cost}`, seed "
            f"{fleet.seed}. In virtual time, with the engine's scheduler and the mesh's KV index, cost model "
            "and placement; this machine does not matter. Load 1.0 saturates the workers when nothing is "
            f"cached. The highest load is that at which {fleet.promise:.0%} of the requests have their first "
            f"token within {fleet.ttft_limit_s:g} s; all else is at load {setting.load:g}, the same for all. "
            "Imbalance is the busiest worker's time over the mean. The trace names no sessions, so `session` "
            f"goes by the prompt's beginning. Differences under {NOISE:.0%} are noise."
        )

    def _table(self) -> str:
        header = ["policy", "highest load", "hit rate", "TTFT mean, s", "p50", "p99", "in time", "imbalance"]
        return table(header, [self._row(one) for one in self.found])

    def _row(self, one: PolicyFound) -> list[str]:
        measures = one.measures
        return [
            f"`{one.policy}`",
            "–" if one.max_load is None else f"{one.max_load:.2f}",
            f"{measures.hit_rate:.1%}",
            f"{measures.ttft_mean_s:.2f}",
            f"{measures.ttft_p50_s:.2f}",
            f"{measures.ttft_p99_s:.2f}",
            f"{measures.within_limit:.1%}",
            f"{measures.imbalance:.2f}",
        ]

    def _verdict(self) -> str | None:
        """How `kv_aware` stands to the bound and to the best of the others, with each seed."""
        best = best_other(self.found)
        loads = {one.policy: one.max_load for one in self.found if one.max_load}
        if best is None or not {KV_AWARE, IDEAL} <= loads.keys():
            return None
        draws = [loads, *(check.loads for check in self.checks)]
        seeds = ", ".join(str(seed) for seed in (self.setting.fleet.seed, *(one.seed for one in self.checks)))
        shares = [draw[KV_AWARE] / draw[IDEAL] for draw in draws]
        leads = [draw[KV_AWARE] / draw[best] for draw in draws]
        clearly = "more than" if min(leads) > 1 + NOISE else "not clearly more than"
        return (
            f"With seed {seeds}: `{KV_AWARE}` bears {', '.join(f'{one:.0%}' for one in shares)} of the load "
            f"of `{IDEAL}`, one cache of the same size for all workers without transfers; and "
            f"{', '.join(f'{one:.2f}' for one in leads)} times that of `{best}`, the best of the other "
            f"policies, which is {clearly} noise. What `{KV_AWARE}` asks for wasted work was chosen on the "
            "conversation trace with seed 0."
        )


def best_other(found: Sequence[PolicyFound]) -> str | None:
    """Who bears most of those that are neither `kv_aware` nor the bound."""
    loads = {one.policy: one.max_load for one in found if one.max_load}
    others = {policy: load for policy, load in loads.items() if policy not in (KV_AWARE, IDEAL)}
    return max(others, key=others.__getitem__) if others else None
