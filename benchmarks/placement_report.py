"""What benchmarks/placement.py found, and how it is shown."""

from dataclasses import asdict, dataclass
from typing import Any

from results_page import table

from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import IDEAL, KV_AWARE, FleetSettings


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
class Report:
    setting: Setting
    found: list[PolicyFound]

    def as_json(self) -> dict[str, Any]:
        policies = [
            {"policy": one.policy, "max_load": one.max_load, **asdict(one.measures)} for one in self.found
        ]
        return {"setting": asdict(self.setting), "policies": policies}

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
            "Imbalance is the busiest worker's time over the mean. Differences under 5% are noise."
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
        """How `kv_aware` stands to the bound and to the best of the others."""
        loads = {one.policy: one.max_load for one in self.found if one.max_load}
        ours, ideal = loads.pop(KV_AWARE, None), loads.pop(IDEAL, None)
        if ours is None or ideal is None or not loads:
            return None
        best = max(loads, key=lambda policy: loads[policy] or 0.0)
        return (
            f"`{KV_AWARE}` bears {ours / ideal:.0%} of the load of `{IDEAL}`, one cache of the same size for "
            f"all workers without transfers, and {ours / (loads[best] or 1.0):.2f} times that of `{best}`, "
            "the best of the other policies."
        )
