"""What it costs the gateway to know where a prompt lies: look-ups, dispatches, events, memory.

The peer is the plain way: a set of hashes for each worker, asked one after the other. `--help` says more.
"""

import argparse
import gc
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import Machine, describe_machine
from results_page import publish, table
from revision import commit

from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.kv_index.matches import MatchedBlocks, Matches
from atomesh.protocol.block_hash import BlockHash, BlockHasher
from atomesh.protocol.kv_events import BlocksStored

OWNER = "benchmarks/kv_index.py"
LIMIT_S = 200e-6  # for the 99th percentile of a look-up
BLOCK_SIZE = 32
Chain = tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one operation on one prompt; `per_block_s` is the mean."""

    what: str
    p50_s: float
    p99_s: float
    per_block_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """`bytes_per_block` is what the process grew by; `collection_s` what the index adds to a full collection
    of garbage."""

    machine: Machine
    commit: str
    workers: int
    blocks: int
    prompt_blocks: int
    costs: list[Cost]
    bytes_per_block: float
    collection_s: float

    @property
    def is_in_time(self) -> bool:
        return self.costs[0].p99_s < LIMIT_S

    def as_markdown(self) -> str:
        rows = [
            [one.what, f"{one.p50_s * 1e6:.0f}", f"{one.p99_s * 1e6:.0f}", f"{one.per_block_s * 1e9:.0f}"]
            for one in self.costs
        ]
        heading = [f"a prompt of {self.prompt_blocks} blocks", "p50, µs", "p99, µs", "mean a block, ns"]
        return (
            f"### The KV index\n\n{self.machine.cpu}, commit {self.commit}. "
            f"{self.blocks:,} blocks of {self.workers} workers in the index, each prompt at one to four of "
            "them; the prompts that are looked up are chosen at random, their hashes fresh in memory. "
            "Measured is the CPU time of the one thread; of the look-up, the median of three rounds.\n\n"
            f"{table(heading, rows)}\n\n"
            f"Memory: {self.bytes_per_block:.0f} bytes a block. A full garbage collection takes "
            f"{self.collection_s * 1e3:.1f} ms longer than before there was an index."
        )


class SetPerWorker:
    """The peer: exact too, one worker after the other."""

    def __init__(self, workers: Sequence[str]) -> None:
        self.held: dict[str, set[BlockHash]] = {worker: set() for worker in workers}

    def match(self, hashes: Sequence[BlockHash]) -> Matches:
        found = {}
        for worker, held in self.held.items():
            length = next((n for n, one in enumerate(hashes) if one not in held), len(hashes))
            if length:
                found[worker] = MatchedBlocks(length)
        return found


def main() -> None:
    options = parse_options()
    report = measure(options)
    publish(options, OWNER, report.as_markdown(), asdict(report))
    if not report.is_in_time:
        sys.exit(f"a look-up's p99 is over {LIMIT_S * 1e6:.0f} µs")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=64, help="default 64")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="in the index; default 1,000,000")
    parser.add_argument("--prompt-blocks", type=int, default=256, help="blocks a prompt; default 256")
    parser.add_argument("--repeats", type=int, default=3000, help="prompts looked up; default 3000")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument("--write", type=Path, help="put the result into this page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Report:
    rng = random.Random(options.seed)  # noqa: S311
    gc.collect()
    collection_before_s, memory_before = seconds_of(gc.collect), resident_bytes()
    filled = fill(options, rng)
    gc.collect()  # after which tuples of bytes are known to need no more of it
    memory_after, collection_s = resident_bytes(), seconds_of(gc.collect)
    return Report(
        machine=describe_machine(),
        commit=commit(),
        workers=options.workers,
        blocks=options.blocks,
        prompt_blocks=options.prompt_blocks,
        costs=measure_costs(filled, options, rng),
        bytes_per_block=(memory_after - memory_before) / options.blocks,
        collection_s=max(0.0, collection_s - collection_before_s),
    )


@dataclass(frozen=True, slots=True)
class Filled:
    """An index with many prompts: `placed` says who holds how much of which; `stored_s` are a block's."""

    index: KVIndex
    workers: list[str]
    chains: list[Chain]
    placed: list[tuple[str, int, int]]
    stored_s: list[float]


def fill(options: argparse.Namespace, rng: random.Random) -> Filled:
    workers = [f"worker-{number}" for number in range(options.workers)]
    room_for_predictions = options.prompt_blocks * 10
    filled = Filled(KVIndex(max_blocks=options.blocks + room_for_predictions), workers, [], [], [])
    for worker in workers:
        filled.index.join(worker)
    while len(filled.index) < options.blocks:
        filled.chains.append(tuple(BlockHash(rng.randbytes(16)) for _ in range(options.prompt_blocks)))
        for rank, worker in enumerate(rng.sample(workers, rng.randint(1, min(4, len(workers))))):
            length = options.prompt_blocks if rank == 0 else rng.randint(1, options.prompt_blocks)
            store(filled, worker, length)
    return filled


def store(filled: Filled, worker: str, length: int) -> None:
    """The worker stores the beginning of the last prompt."""
    events = [BlocksStored(b"", list(filled.chains[-1][:length]))]
    seconds = seconds_of(lambda: filled.index.apply(worker, events))
    filled.stored_s.append(seconds / length)
    filled.placed.append((worker, len(filled.chains) - 1, length))


def measure_costs(filled: Filled, options: argparse.Namespace, rng: random.Random) -> list[Cost]:
    index, size, repeats = filled.index, options.prompt_blocks, options.repeats
    peer = SetPerWorker(filled.workers)
    for worker, number, length in filled.placed:
        peer.held[worker].update(filled.chains[number][:length])
    tokens = [rng.randrange(2**16) for _ in range(size * BLOCK_SIZE)]
    hasher = BlockHasher(b"secret", "model", BLOCK_SIZE)

    def seconds(operation: Callable[[Chain], object], times: int) -> list[float]:
        """Of `operation` on a prompt chosen at random, so many times."""
        chosen = (
            tuple(BlockHash(bytes(bytearray(one))) for one in rng.choice(filled.chains)) for _ in range(times)
        )
        return [seconds_of(lambda: operation(chain)) for chain in chosen]  # noqa: B023  called at once

    look_ups = [
        cost("look-up", size, seconds(lambda chain: index.match(chain, 0.0), repeats)) for _ in range(3)
    ]
    return [
        sorted(look_ups, key=lambda one: one.p99_s)[1],
        cost("look-up, a set a worker", size, seconds(peer.match, max(100, repeats // 10))),
        cost(
            "dispatch: predicted, and made the youngest",
            size,
            seconds(lambda chain: index.predict(rng.choice(filled.workers), chain, 0.0), repeats),
        ),
        cost("stored, as its events say", size, [one * size for one in filled.stored_s]),
        cost(
            "hashing its tokens, apart", size, [seconds_of(lambda: hasher.chain(tokens)) for _ in range(200)]
        ),
    ]


def cost(what: str, num_blocks: int, seconds: list[float]) -> Cost:
    ordered = sorted(seconds)
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return Cost(what, p50, p99, sum(ordered) / len(ordered) / num_blocks)


def seconds_of(operation: Callable[[], object]) -> float:
    """Of this thread's CPU: what else the machine does is not counted."""
    began = time.thread_time_ns()
    operation()
    return (time.thread_time_ns() - began) * 1e-9


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
