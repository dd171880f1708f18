"""Every placement policy on one trace: cache hits, time to the first token, and the load that it bears.

Simulated: each worker runs the engine's own scheduler, and the mesh's own placement decides, in virtual time.
The cost of a step is a formula, so the figures do not depend on this machine. `python benchmarks/placement.py
--help`
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from placement_report import Report, Setting
from placement_runs import Runs, note
from placement_traffic import TRACE, TraceTraffic
from results_page import publish
from revision import commit

from atomesh.bench.trace import MOONCAKE_BLOCK_TOKENS
from atomesh.errors import AtomeshError
from atomesh.mesh.placement.policies.registry import POLICIES
from atomesh.planner.simulator.latency_model import COSTS, DEFAULT_COST, find_costs
from atomesh.planner.simulator.simulated_cluster import IDEAL, KV_AWARE, FleetSettings

OWNER = "benchmarks/placement.py"
ALWAYS_SHOWN = (KV_AWARE, IDEAL, "least_work")


def main() -> None:
    options = parse_options()
    started = time.perf_counter()
    traffic = TraceTraffic(options.trace, options.requests, block_size=options.block_size)
    try:
        num_requests = len(traffic.draw(options.seeds[0]).arrivals)
    except AtomeshError as error:
        sys.exit(f"{OWNER}: {error}")
    setting = Setting(
        commit=commit(),
        trace=options.trace.stem,
        num_requests=num_requests,
        fleet=fleet_of(options),
        block_size=options.block_size,
        cost=options.cost,
        seeds=options.seeds,
        resolution=options.resolution,
    )
    with ExitStack() as stack:
        executor = None
        if options.processes > 1:
            executor = stack.enter_context(ProcessPoolExecutor(options.processes))
        runs = Runs(traffic, setting.fleet, options.seeds, options.resolution, executor)
        report = measure(runs, setting, options)
    note(f"{time.perf_counter() - started:.0f} s in all")
    publish(options, OWNER, report.as_markdown(), report.as_json())


def fleet_of(options: argparse.Namespace) -> FleetSettings:
    return FleetSettings(
        num_workers=options.workers,
        blocks_per_worker=options.blocks_per_worker,
        max_num_batched_tokens=options.max_num_batched_tokens,
        costs=find_costs(options.cost),
        ttft_limit_s=options.ttft_limit,
        promise=options.promise / 100,
    )


def measure(runs: Runs, setting: Setting, options: argparse.Namespace) -> Report:
    found = {} if options.no_find_load else runs.find_loads(options.policies)
    first, *others = options.loads
    measures = {first: runs.measure(options.policies, first)}
    for load in others:
        measures[load] = runs.measure(who_bears(load, found, options.policies), load)
    return Report(setting, found, measures)


def who_bears(load: float, found: dict[str, list[float]], policies: Sequence[str]) -> list[str]:
    """Of the others, queues at that load tell nothing: they grow for as long as it lasts."""
    return [one for one in policies if one in ALWAYS_SHOWN or not found or min(found[one]) >= load]


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
        "--loads",
        type=float,
        nargs="+",
        default=[1.0, 1.1, 1.2],
        metavar="LOAD",
        help="for hits and times, all policies at the first; 1 saturates the workers without a cache",
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
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=list(range(8)),
        metavar="SEED",
        help="of arrivals within a tick, and of dice; all is measured with each",
    )
    parser.add_argument("--resolution", type=float, default=0.005, help="of the highest load")
    parser.add_argument("--processes", type=int, default=1, help="simulations at a time")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
