"""Placement policies on our own gateway and workers, live, and what the simulator says of the same traffic.

The conversation trace, its prompts shorter and its times and costs scaled down, goes over HTTP through the
gateway to workers that sleep where a model would compute: all else is what serves. `python
benchmarks/placement_live.py --help`
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from live_fleet import run_live
from machine import describe_machine
from placement_traffic import TRACE, TraceTraffic
from results_page import publish, table
from revision import commit

from atomesh.errors import AtomeshError
from atomesh.mesh.placement.costs import StepCosts
from atomesh.mesh.placement.policies.registry import POLICIES
from atomesh.planner.simulator.latency_model import DEFAULT_COST, find_costs
from atomesh.planner.simulator.measures import Measures
from atomesh.planner.simulator.simulated_cluster import FleetSettings, simulate
from atomesh.planner.simulator.workload import Arrival, Workload

OWNER = "benchmarks/placement_live.py"
POLICIES_LIVE = ("kv_aware", "cache_aware", "least_work", "round_robin")


@dataclass(frozen=True, slots=True)
class Scale:
    """Prompts are `length` times shorter, in blocks as many times smaller, and steps `time` times shorter."""

    length: int
    time: float

    def costs(self, full: StepCosts) -> StepCosts:
        """So that a shorter prompt takes the share `1 / time` of what the whole one takes."""
        per_token, per_pair = self.length / self.time, self.length**2 / self.time
        return replace(
            full,
            fixed_s=full.fixed_s / self.time,
            token_s=full.token_s * per_token,
            quadratic_s=full.quadratic_s * per_pair,
            context_s=full.context_s * per_token,
            sequence_s=full.sequence_s / self.time,
        )

    def workload(self, full: Workload) -> Workload:
        arrivals = [
            Arrival(one.at_s, -(-one.num_tokens // self.length), one.block_ids) for one in full.arrivals
        ]
        return Workload(tuple(arrivals), full.block_size // self.length)


@dataclass(frozen=True, slots=True)
class Found:
    policy: str
    live: Measures
    simulated: Measures
    cpu_s: float


def main() -> None:
    options = parse_options()
    started = time.perf_counter()
    scale = Scale(options.length_scale, options.time_scale)
    fleet = fleet_of(options, scale)
    try:
        full = TraceTraffic(options.trace, options.requests).draw(options.seed)
    except AtomeshError as error:
        sys.exit(f"{OWNER}: {error}")
    workload = scale.workload(full).at_load(options.load, fleet.costs, fleet.num_workers)
    found = [measure(policy, fleet, workload) for policy in options.policies]
    print(f"{time.perf_counter() - started:.0f} s in all", file=sys.stderr)
    text = as_markdown(found, fleet, workload, options)
    publish(options, OWNER, text, as_json(found))


def fleet_of(options: argparse.Namespace, scale: Scale) -> FleetSettings:
    full = FleetSettings()
    return replace(
        full,
        num_workers=options.workers,
        blocks_per_worker=options.blocks_per_worker,
        max_num_batched_tokens=full.max_num_batched_tokens // scale.length,
        costs=scale.costs(find_costs(DEFAULT_COST)),
        ttft_limit_s=full.ttft_limit_s / scale.time,
        seed=options.seed,
    )


def measure(policy: str, fleet: FleetSettings, workload: Workload) -> Found:
    simulated = simulate(fleet, workload, policy)
    live, cpu_s = run_live(fleet, workload, policy)
    print(f"{policy}: {live.ttft_mean_s:.3f} s live, {simulated.ttft_mean_s:.3f} simulated", file=sys.stderr)
    return Found(policy, live, simulated, cpu_s)


def ranking(found: Sequence[Found], figure: Callable[[Found], float]) -> str:
    return " < ".join(f"`{one.policy}`" for one in sorted(found, key=figure))


def as_markdown(
    found: Sequence[Found], fleet: FleetSettings, workload: Workload, options: argparse.Namespace
) -> str:
    live = ranking(found, lambda one: one.live.ttft_mean_s)
    simulated = ranking(found, lambda one: one.simulated.ttft_mean_s)
    also = ", as simulated." if live == simulated else f"; simulated {simulated}."
    cpu_ms = 1000 * sum(one.cpu_s for one in found) / sum(one.live.num_requests for one in found)
    header = ["policy", "hit rate", "TTFT mean, ms", "p50", "p99", "in time", "imbalance"]
    return "\n\n".join(
        [
            f"## Placement: {options.trace.stem}, live and simulated",
            f"Commit {commit()}; {describe_machine()}. The first {len(workload.arrivals):,} requests in "
            f"{workload.duration_s:.0f} s (load {options.load:g}), over HTTP through our gateway to "
            f"{fleet.num_workers} of our workers on the token plane, all in one process. Prompts are "
            f"{options.length_scale} times and steps {options.time_scale:g} times shorter than simulated "
            f"at full scale; a worker has {fleet.blocks_per_worker:,} blocks of {workload.block_size} "
            "tokens, and its executor sleeps as long as a step takes. In time is within "
            f"{1000 * fleet.ttft_limit_s:.0f} ms; caches are empty at first, seed {options.seed}. In "
            "brackets: the simulator of the same traffic. Gateway, workers and client together took "
            f"{cpu_ms:.1f} ms of processor time a request.",
            table(header, [row(one) for one in found]),
            f"By mean TTFT, live: {live}{also}",
        ]
    )


def row(one: Found) -> list[str]:
    live, simulated = one.live, one.simulated

    def both(name: str, form: str, factor: float = 1.0) -> str:
        pair = (factor * getattr(measures, name) for measures in (live, simulated))
        return "{} ({})".format(*(format(value, form) for value in pair))

    return [
        f"`{one.policy}`",
        both("hit_rate", ".1%"),
        both("ttft_mean_s", ",.0f", 1000),
        both("ttft_p50_s", ",.0f", 1000),
        both("ttft_p99_s", ",.0f", 1000),
        both("within_limit", ".1%"),
        both("imbalance", ".2f"),
    ]


def as_json(found: Sequence[Found]) -> dict[str, Any]:
    return {"policies": [asdict(one) for one in found]}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake JSON lines, with hash_ids")
    parser.add_argument("--requests", type=int, default=800, metavar="N", help="the first N of the trace")
    parser.add_argument(
        "--policies", nargs="+", choices=[*POLICIES], default=list(POLICIES_LIVE), metavar="POLICY"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--blocks-per-worker", type=int, default=5000)
    parser.add_argument("--length-scale", type=int, default=16, help="prompts and blocks are so much shorter")
    parser.add_argument("--time-scale", type=float, default=4.0, help="steps are so much shorter")
    parser.add_argument("--load", type=float, default=1.1, help="1 saturates the workers without a cache")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
