"""A gateway that was told of nobody, and workers that make themselves known to it: each a process."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atomesh.testing.pd_bench import PDBench, Shape, watched
from atomesh.testing.served_process import ADMIN_TOKEN, ServedProcess, free_port, wait_for
from atomesh.testing.wired_cluster import KeptProcess

START_S = 90.0  # they import torch, all at once


@dataclass(frozen=True, slots=True)
class Joining:
    """`start` one more worker, kept alive as the others are, with flags of its own; stopped at the end."""

    bench: PDBench
    words: list[str]
    environment: dict[str, str]
    stack: ExitStack

    def start(self, name: str, *flags: str) -> KeptProcess:
        words = [*self.words, f"--worker-id={name}", f"--listen=127.0.0.1:{free_port()}", *flags]
        process = KeptProcess(words, self.environment)
        self.stack.callback(process.stop)
        return process


@contextmanager
def joining_cluster(model: Path, home: Path, num_workers: int) -> Iterator[Joining]:
    """Once unified-0, unified-1 … have all come and are ready. Prompts are computed by 128 tokens."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ATOMESH_HOME": str(home), "ATOMESH_ADMIN_TOKEN": ADMIN_TOKEN}
    port = free_port()
    words = ["worker", str(model), f"--gateway=http://127.0.0.1:{port}", "--role=unified", "--threads=1"]
    words += ["--enable-faults", "--max-num-batched-tokens=128", "--dtype=float32", "--kv-memory=8MiB"]
    with ExitStack() as stack:
        front = KeptProcess(["gateway", f"--port={port}", "--await-workers", "--enable-faults"], environment)
        stack.callback(front.stop)
        front.follower = served = ServedProcess(front.process, port, model.name)
        bench = PDBench(served, Shape(unified=num_workers, is_wired=True), home)
        joining = Joining(bench, words, environment, stack)
        for number in range(num_workers):
            joining.start(f"unified-{number}")
        wait_for(served.is_ready, START_S)
        wait_for(lambda: len(bench.workers()) == num_workers, START_S)
        bench.settle(START_S)
        bench.begin()
        with watched(bench):
            yield joining
