"""How long one placement decision takes: `python benchmarks/placement_decision.py [--workers 64] [--json]`.

Processor time: what else runs on the machine does not count. The prompt's hashes and the index's answer are
there already; benchmarks of their own measure those.
"""

import argparse
import json
import random
import time

from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.policies.registry import POLICIES, PolicySet
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.worker import LoadReport, Role
from atomesh.testing.mesh_snapshots import MODEL, cluster, worker_snapshot

BLOCKS, BLOCK = 256, 16
WARM_UP = 50
POOLS: dict[str, tuple[Role, ...]] = {"unified": ("unified",), "prefill and decode": ("prefill", "decode")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--decisions", type=int, default=2000, help="for each policy")
    parser.add_argument("--policies", nargs="+", choices=[*POLICIES], default=[*POLICIES], metavar="POLICY")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    found = [
        {"pool": pool, "policy": policy, **measure(policy, roles, options.workers, options.decisions)}
        for pool, roles in POOLS.items()
        for policy in options.policies
    ]
    if options.json:
        print(json.dumps({"workers": options.workers, "decisions": found}, indent=2))
        return
    print(f"{options.workers} workers, a prompt of {BLOCKS} blocks, µs of processor time a decision")
    for one in found:
        print(f"{one['pool']:20} {one['policy']:14} p50 {one['p50_us']:6.0f}  p99 {one['p99_us']:6.0f}")


def measure(policy: str, roles: tuple[Role, ...], num_workers: int, decisions: int) -> dict[str, float]:
    """Microseconds; half of the workers hold some of the prompt, and all have something to do."""
    rng = random.Random(0)  # noqa: S311
    policies = PolicySet(policy)
    taken: list[float] = []
    for _ in range(decisions + WARM_UP):
        inputs = make_inputs(roles, num_workers, rng)
        began = time.thread_time()
        place(inputs, policies)
        taken.append((time.thread_time() - began) * 1e6)
    ordered = sorted(taken[WARM_UP:])
    return {"p50_us": ordered[len(ordered) // 2], "p99_us": ordered[len(ordered) * 99 // 100]}


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
