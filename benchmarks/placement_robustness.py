"""Whether `kv_aware` is as good where its weights were not chosen: other traffic, fleets and caches.

The weights were chosen on the first half of the trace and on the tenants, and then looked at on all the
others, with seed 0; other seeds had no part in that. Simulated, as benchmarks/placement.py. `python
benchmarks/placement_robustness.py --help`
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from paired import Ratio, paired_ratio
from placement_runs import Runs, note
from placement_traffic import TRACE, SyntheticTraffic, TraceTraffic, Traffic
from results_page import publish, table
from revision import commit

from atomesh.errors import AtomeshError
from atomesh.mesh.placement.inputs import Weights
from atomesh.planner.simulator.simulated_cluster import IDEAL, KV_AWARE, FleetSettings

OWNER = "benchmarks/placement_robustness.py"
RIVALS = ("cache_aware", "least_work")
CHOICES = ((0.0, 32.0), (1.0, 32.0), (2.0, 16.0), (4.0, 16.0), (4.0, 32.0), (8.0, 64.0))
FLEETS = {
    "8 workers of 10,000 blocks": FleetSettings(),
    "4 workers": FleetSettings(num_workers=4),
    "16 workers": FleetSettings(num_workers=16),
    "caches of 2,500 blocks": FleetSettings(blocks_per_worker=2500),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a policy is judged."""

    name: str
    traffic: Traffic
    fleet: FleetSettings


@dataclass(frozen=True, slots=True)
class Judged:
    """The highest load of each policy for each seed."""

    name: str
    loads: dict[str, list[float]]
    resolution: float

    def lead(self, policy: str) -> Ratio:
        return paired_ratio(self.loads[KV_AWARE], self.loads[policy], self.resolution)

    def row(self) -> list[str]:
        leads = [f"{self.lead(policy)}, {self.lead(policy).verdict}" for policy in RIVALS]
        return [self.name, f"{fmean(self.loads[KV_AWARE]):.3f}", *leads, str(self.lead(IDEAL))]


@dataclass(frozen=True, slots=True)
class Tuned:
    """With these weights on the first half of the trace: the highest load by seed, and the mean TTFT."""

    weights: Weights
    loads: list[float]
    ttft_mean_s: float

    def row(self) -> list[str]:
        weights = self.weights
        loads = f"{fmean(self.loads):.3f}"
        return [f"{weights.waste:g}, {weights.most_waste:g}", loads, f"{self.ttft_mean_s:.3f}"]


def main() -> None:
    options = parse_options()
    started = time.perf_counter()
    with ExitStack() as stack:
        executor = None
        if options.processes > 1:
            executor = stack.enter_context(ProcessPoolExecutor(options.processes))

        def runs(place: Place) -> Runs:
            return Runs(place.traffic, place.fleet, options.seeds, options.resolution, executor)

        try:
            tuned = [] if options.no_choice else compare_weights(runs, options)
            judged = [judge(place, runs(place)) for place in places(options)]
        except AtomeshError as error:
            sys.exit(f"{OWNER}: {error}")
    note(f"{time.perf_counter() - started:.0f} s in all")
    text = as_markdown(tuned, judged, options)
    publish(options, OWNER, text, as_json(tuned, judged))
    if any(one.lead(policy).verdict == "behind" for one in judged for policy in RIVALS):
        sys.exit(1)


def places(options: argparse.Namespace) -> list[Place]:
    second_half = TraceTraffic(options.trace, options.requests, begin=0.5)
    trace = [Place(f"second half, {name}", second_half, fleet) for name, fleet in FLEETS.items()]
    made_up = [
        Place(f"{kind}, made up", SyntheticTraffic(kind, options.made_up_requests), FleetSettings())
        for kind in ("tenants", "chats")
    ]
    return [place for place in (*trace, *made_up) if not options.only or options.only in place.name]


def judge(place: Place, runs: Runs) -> Judged:
    note(place.name)
    return Judged(place.name, runs.find_loads((KV_AWARE, *RIVALS, IDEAL)), runs.resolution)


def compare_weights(runs: Any, options: argparse.Namespace) -> list[Tuned]:
    first_half = TraceTraffic(options.trace, options.requests, end=0.5)
    found = []
    for waste, most_waste in CHOICES:
        weights = Weights(waste=waste, most_waste=most_waste)
        note(f"first half, waste {waste:g}, most_waste {most_waste:g}")
        tried = runs(Place("first half", first_half, FleetSettings(weights=weights)))
        loads = tried.find_loads((KV_AWARE,))[KV_AWARE]
        times = tried.measure((KV_AWARE,), options.load)[KV_AWARE]
        found.append(Tuned(weights, loads, fmean(one.ttft_mean_s for one in times)))
    return found


def as_markdown(tuned: Sequence[Tuned], judged: Sequence[Judged], options: argparse.Namespace) -> str:
    parts = [
        "## Placement: where the weights were not chosen",
        f"Commit {commit()}; as the section above, means over {len(options.seeds)} seeds, the highest load "
        f"to {options.resolution:g}. Ratios are of the highest load of `{KV_AWARE}` to that of the policy; "
        "behind means that the interval, widened by what the search leaves open, lies below 1. Tenants: 64 "
        "system prompts of 1,000 to 12,000 tokens, asked for as 1/rank, and a question of its own in each "
        "request; chats: six turns on average that share nothing with other chats. The weights were chosen "
        "on the first half of the trace and on the tenants, and looked at on the rest with seed 0.",
        table(
            ["where", "highest load", *(f"to `{policy}`" for policy in RIVALS), f"to `{IDEAL}`"],
            [one.row() for one in judged],
        ),
    ]
    if tuned:
        parts += [
            "The two weights of wasted work, compared on the first half of the trace (8 workers of 10,000 "
            f"blocks; TTFT at load {options.load:g}):",
            table(["waste, most_waste", "highest load", "TTFT mean, s"], [one.row() for one in tuned]),
        ]
    return "\n\n".join(parts)


def as_json(tuned: Sequence[Tuned], judged: Sequence[Judged]) -> dict[str, Any]:
    return {
        "weights": [asdict(one) for one in tuned],
        "places": [
            {
                **asdict(one),
                "leads": {policy: asdict(one.lead(policy)) for policy in (*RIVALS, IDEAL)},
                "verdicts": {policy: one.lead(policy).verdict for policy in RIVALS},
            }
            for one in judged
        ],
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake JSON lines, with hash_ids")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of the trace")
    parser.add_argument("--made-up-requests", type=int, default=6000, help="of each kind")
    parser.add_argument("--only", metavar="TEXT", help="only where the name contains this")
    parser.add_argument("--no-choice", action="store_true", help="leave out the comparison of weights")
    parser.add_argument("--load", type=float, default=1.2, help="for the times of that comparison")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(4)), metavar="SEED")
    parser.add_argument("--resolution", type=float, default=0.005, help="of the highest load")
    parser.add_argument("--processes", type=int, default=1, help="simulations at a time")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
