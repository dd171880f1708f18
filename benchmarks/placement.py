"""Every placement policy on one trace: cache hits, time to the first token, and the load that it bears.

Simulated: each worker runs the engine's own scheduler, and the mesh's own placement decides, in virtual time.
The cost of a step is a formula, so the figures do not depend on this machine. `python benchmarks/placement.py
--help`
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from placement_report import PolicyFound, Report, SeedCheck, Setting, best_other
from results_page import write_section
from revision import commit

from atomesh.bench.trace import MOONCAKE_BLOCK_TOKENS, read_trace
from atomesh.errors import AtomeshError
from atomesh.mesh.placement.policies.registry import POLICIES
from atomesh.planner.simulator.latency_model import COSTS, DEFAULT_COST, find_costs
from atomesh.planner.simulator.simulated_cluster import (
    IDEAL,
    KV_AWARE,
    FleetSettings,
    find_policy_load,
    simulate,
)
from atomesh.planner.simulator.workload import Arrival, Workload, make_workload

OWNER = "benchmarks/placement.py"
TRACE = Path(__file__).parents[2] / "shared" / "traces" / "conversation_trace.jsonl"


def main() -> None:
    options = parse_options()
    settings = FleetSettings(
        num_workers=options.workers,
        blocks_per_worker=options.blocks_per_worker,
        max_num_batched_tokens=options.max_num_batched_tokens,
        costs=find_costs(options.cost),
        ttft_limit_s=options.ttft_limit,
        promise=options.promise / 100,
        seed=options.seed,
    )
    try:
        workload = read_workload(options, options.seed)
    except AtomeshError as error:
        sys.exit(f"{OWNER}: {error}")
    found = [measure_policy(policy, settings, workload, options) for policy in options.policies]
    seeds = [] if options.no_find_load else options.check_seeds
    setting = Setting(
        commit=commit(),
        trace=options.trace.stem,
        num_requests=len(workload.arrivals),
        fleet=settings,
        block_size=workload.block_size,
        cost=options.cost,
        load=options.load,
    )
    report = Report(setting, found, [check_seed(seed, settings, found, options) for seed in seeds])
    if options.write is not None:
        write_section(options.write, OWNER, report.as_markdown())
    print(json.dumps(report.as_json(), indent=2) if options.json else report.as_markdown())


def read_workload(options: argparse.Namespace, seed: int) -> Workload:
    entries = read_trace(options.trace, options.requests)
    arrivals = [Arrival(entry.at_s, entry.input_tokens, entry.prefix_ids) for entry in entries]
    return make_workload(arrivals, options.block_size, Random(seed))  # noqa: S311


def measure_policy(
    policy: str, settings: FleetSettings, workload: Workload, options: argparse.Namespace
) -> PolicyFound:
    started = time.perf_counter()
    scaled = workload.at_load(options.load, settings.costs, settings.num_workers)
    measures = simulate(settings, scaled, policy)
    speed = measures.num_requests / (time.perf_counter() - started)
    max_load = None if options.no_find_load else find_policy_load(settings, workload, policy)
    note(f"{policy}: {speed:,.0f} requests/s simulated, {time.perf_counter() - started:.0f} s in all")
    return PolicyFound(policy, max_load, measures)


def check_seed(
    seed: int, settings: FleetSettings, found: Sequence[PolicyFound], options: argparse.Namespace
) -> SeedCheck:
    """Of kv_aware, the bound and the best of the others, as far as they were measured."""
    workload, fleet = read_workload(options, seed), replace(settings, seed=seed)
    wanted = (KV_AWARE, IDEAL, best_other(found))
    policies = [one.policy for one in found if one.policy in wanted]
    note(f"seed {seed}: {', '.join(policies)}")
    return SeedCheck(seed, {policy: find_policy_load(fleet, workload, policy) for policy in policies})


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    defaults = FleetSettings()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=TRACE, help="Mooncake JSON lines, with hash_ids")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of the trace")
    names = [*POLICIES, IDEAL]
    parser.add_argument(
        "--policies", nargs="+", choices=names, default=names, metavar="POLICY", help=", ".join(names)
    )
    parser.add_argument("--workers", type=int, default=defaults.num_workers)
    parser.add_argument("--blocks-per-worker", type=int, default=defaults.blocks_per_worker)
    parser.add_argument("--block-size", type=int, default=MOONCAKE_BLOCK_TOKENS, help="tokens, the trace's")
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=defaults.max_num_batched_tokens,
        help="of a worker's step",
    )
    parser.add_argument("--cost", choices=sorted(COSTS), default=DEFAULT_COST, help="what a step costs")
    parser.add_argument(
        "--load", type=float, default=1.0, help="for hits and times; 1 saturates the workers without a cache"
    )
    parser.add_argument("--ttft-limit", type=float, default=defaults.ttft_limit_s, help="seconds")
    parser.add_argument(
        "--promise",
        type=float,
        default=100 * defaults.promise,
        help="percent of requests that keep the limit",
    )
    parser.add_argument(
        "--no-find-load", action="store_true", help="leave out the highest load, which takes longest"
    )
    parser.add_argument("--seed", type=int, default=0, help="of arrivals within a tick, and of dice")
    parser.add_argument(
        "--check-seeds",
        type=int,
        nargs="*",
        default=[1, 2],
        help="for kv_aware, the bound and the best other",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
