"""How fast KV blocks move between two workers of this machine, against one thread's memcpy of the same.

And what that adds to the time to the first token, with each finished chunk pushed while the next is computed,
and with everything pushed at the end. `python benchmarks/kv_transfer.py --help`
"""

import argparse
import ctypes
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from kv_transfer_peer import ReceiverProcess, Sender, pin, scattered, touched_pool
from kv_transfer_report import MEMCPY, AddedDelay, Report, TransferSpeed
from machine import describe_machine
from results_page import publish
from revision import commit

from atomesh.cli.core_shares import usable_cores
from atomesh.kv_transfer.pool_memory import PoolMemory
from atomesh.kv_transfer.transport import Pushed

OWNER = "benchmarks/kv_transfer.py"


def main() -> None:
    options = parse_options()
    machine = describe_machine()
    counts = [max(1, round(size * 1e6 / options.block_bytes)) for size in options.sizes]
    num_blocks = max(*counts, options.chunks * options.chunk_blocks) + 8
    cores = usable_cores()
    pin(cores[0])
    pool, copy = touched_pool(num_blocks, options.block_bytes), touched_pool(num_blocks, options.block_bytes)
    with tempfile.TemporaryDirectory() as directory:
        receiver = ReceiverProcess(Path(directory), num_blocks, options.block_bytes, cores[-1])
        listens = {"shm": f"unix:{directory}/sender", "tcp": "127.0.0.1:0"}
        senders = {name: Sender(listens[name], peer, pool) for name, peer in receiver.addresses.items()}
        speeds = [measure_speed(senders, pool, copy, count, options.rounds) for count in counts]
        delays = [measure_delay(name, sender, pool, options) for name, sender in senders.items()]
        for sender in senders.values():
            sender.transport.close()
        receiver.close()
    report = Report(machine, commit(), options.block_bytes, options.rounds, speeds, delays)
    publish(options, OWNER, report.as_markdown(), report.as_json())


def measure_speed(
    senders: dict[str, Sender], pool: PoolMemory, copy: PoolMemory, count: int, rounds: int
) -> TransferSpeed:
    """One round more than is counted: the first one maps what has never been mapped."""
    found: dict[str, list[float]] = {name: [] for name in (MEMCPY, *senders)}
    for number in range(rounds + 1):
        note(f"{count} blocks, round {number} of {rounds}")
        blocks = scattered(pool.num_blocks, count, 1000 + number)
        found[MEMCPY].append(memcpy_s(pool, blocks, copy, scattered(copy.num_blocks, count, number)))
        for name, sender in senders.items():
            found[name].append(sender.push_s(blocks))
    return TransferSpeed(
        count, count * pool.block_bytes, {name: median(seconds[1:]) for name, seconds in found.items()}
    )


def memcpy_s(source: PoolMemory, blocks: Sequence[int], target: PoolMemory, places: Sequence[int]) -> float:
    pairs = [
        (target.block_address(place), source.block_address(block))
        for place, block in zip(places, blocks, strict=True)
    ]
    begin = perf_counter()
    for to_address, from_address in pairs:
        ctypes.memmove(to_address, from_address, source.block_bytes)
    return perf_counter() - begin


def measure_delay(name: str, sender: Sender, pool: PoolMemory, options: argparse.Namespace) -> AddedDelay:
    size, rounds = options.chunk_blocks, options.rounds
    chunkwise, whole, last = [], [], []
    for number in range(rounds):
        note(f"{name}, chunks, round {number + 1} of {rounds}")
        blocks = scattered(pool.num_blocks, size * options.chunks, 2000 + number)
        chunks = [blocks[start : start + size] for start in range(0, len(blocks), size)]
        last.append(sender.push_s(chunks[-1]))
        chunkwise.append(added_s(sender, chunks, options.compute_s))
        whole.append(added_s(sender, [[], blocks], options.compute_s))
    return AddedDelay(
        name, options.chunks, size * pool.block_bytes, median(chunkwise), median(whole), median(last)
    )


def added_s(sender: Sender, chunks: Sequence[Sequence[int]], compute_s: float) -> float:
    """Seconds from the end of the last chunk's computing until all blocks have arrived."""
    blocks = [block for chunk in chunks for block in chunk]
    sender.open_grant(blocks)
    pushed = 0
    begin = perf_counter()
    for chunk in chunks:
        compute(compute_s)
        begin = perf_counter()
        if chunk:
            sender.push(chunk, pushed)
        pushed += len(chunk)
    sender.wait(Pushed, sum(bool(chunk) for chunk in chunks))
    seconds = perf_counter() - begin
    sender.close_grant(len(blocks))
    return seconds


def compute(seconds: float) -> None:
    """Keep our core as busy as prefill does."""
    matrix = np.ones((256, 256), np.float32)
    end = perf_counter() + seconds
    while perf_counter() < end:
        matrix @ matrix


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=float, nargs="+", default=[1.5, 20.0, 512.0], metavar="MB")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--block-bytes", type=int, default=1_474_560, help="the default model's 32 tokens in float32"
    )
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--chunk-blocks", type=int, default=16, help="of 32 tokens: 16 are 512 tokens")
    parser.add_argument("--compute-s", type=float, default=0.2, help="that a chunk is computed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the result into this page")
    return parser.parse_args()


def note(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    main()
