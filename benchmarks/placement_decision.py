"""How long one placement decision takes, under each policy, in one pool and in two. `--help` says more.

Processor time: what else runs on the machine does not count. The prompt's hashes and the index's answer are
there already; benchmarks/kv_index.py measures those.
"""

import argparse
import gc
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import Machine, describe_machine
from results_page import publish, table
from revision import commit

from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.policies.registry import POLICIES, PolicySet
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.worker import LoadReport, Role
from atomesh.testing.mesh_snapshots import MODEL, cluster, worker_snapshot

OWNER = "benchmarks/placement_decision.py"
LIMIT_S = 1e-3  # for the 99th percentile of a decision
BLOCKS, BLOCK = 256, 16
WARM_UP = 50
POOLS: dict[str, tuple[Role, ...]] = {"unified": ("unified",), "prefill and decode": ("prefill", "decode")}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one decision."""

    policy: str
    pool: str
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    commit: str
    workers: int
    decisions: int
    costs: list[Cost]

    @property
    def too_slow(self) -> list[Cost]:
        return [one for one in self.costs if one.p99_s >= LIMIT_S]

    def as_markdown(self) -> str:
        rows = [
            [one.policy, one.pool, f"{one.p50_s * 1e6:.0f}", f"{one.p99_s * 1e6:.0f}"] for one in self.costs
        ]
        slow = ", ".join(f"{one.policy} ({one.pool})" for one in self.too_slow)
        return (
            f"### A placement decision\n\n{self.machine.cpu}, commit {self.commit}. {self.workers} workers, "
            f"all with something to do, half of them with some of the prompt's {BLOCKS} blocks; "
            f"{self.decisions:,} decisions of each kind, no two alike. Measured is the CPU time of the one "
            "thread.\n\n"
            f"{table(['policy', 'workers are', 'p50, µs', 'p99, µs'], rows)}\n\n"
            f"The limit for p99 is {LIMIT_S * 1e6:,.0f} µs: "
            f"{'not kept by ' + slow if slow else 'kept by all'}."
        )


def main() -> None:
    options = parse_options()
    report = measure(options)
    publish(options, OWNER, report.as_markdown(), asdict(report))
    if report.too_slow:
        sys.exit(f"a decision's p99 is over {LIMIT_S * 1e6:,.0f} µs")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--decisions", type=int, default=2000, help="for each policy")
    parser.add_argument("--policies", nargs="+", choices=[*POLICIES], default=[*POLICIES], metavar="POLICY")
    parser.add_argument("--write", type=Path, help="put the result into this page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Report:
    return Report(
        machine=describe_machine(),
        commit=commit(),
        workers=options.workers,
        decisions=options.decisions,
        costs=[
            measure_policy(policy, pool, options.workers, options.decisions)
            for policy in options.policies
            for pool in POOLS
        ],
    )


def measure_policy(policy: str, pool: str, num_workers: int, decisions: int) -> Cost:
    """Half of the workers hold some of the prompt, and all have something to do."""
    rng = random.Random(0)  # noqa: S311
    policies = PolicySet(policy)
    taken: list[float] = []
    gc.collect()
    for _ in range(decisions + WARM_UP):
        inputs = make_inputs(POOLS[pool], num_workers, rng)
        began = time.thread_time_ns()
        place(inputs, policies)
        taken.append((time.thread_time_ns() - began) * 1e-9)
    ordered = sorted(taken[WARM_UP:])
    return Cost(policy, pool, ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100])


def make_inputs(roles: tuple[Role, ...], num_workers: int, rng: random.Random) -> PlacementInputs:
    workers = [
        worker_snapshot(
            f"w{number}",
            roles[number % len(roles)],
            load=LoadReport(running=rng.randrange(8), total_blocks=1000, free_blocks=rng.randrange(1000)),
            prefill_tokens=rng.randrange(8000),
            prefill_quadratic=rng.randrange(8000**2),
            sequences=8,
            decoding=rng.randrange(8),
            context_tokens=rng.randrange(16_000),
        )
        for number in range(num_workers)
    ]
    holders = rng.sample(workers, num_workers // 2)
    return PlacementInputs(
        request=RequestFacts(
            BLOCKS * BLOCK,
            block_hashes=tuple(BlockHash(bytes([n]) * 16) for n in range(BLOCKS)),
            block_size=BLOCK,
            session="s",
        ),
        model=MODEL,
        cluster=cluster(*workers),
        now=100.0,
        dice=rng,
        matches={worker.incarnation: MatchedBlocks(rng.randrange(1, BLOCKS)) for worker in holders},
        last_way=None,
    )


if __name__ == "__main__":
    main()
