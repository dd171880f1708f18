"""Attention by the C++ kernel beside PyTorch's: single tokens over long contexts, and prompts.

Both read the same pool in turn, layer after layer, so that caches hold little of what comes next.
`--help` says more.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from machine import Machine, describe_machine, read_bandwidth
from results_page import publish, table
from revision import commit

from atomesh.engine.attention.cpu_attention import CpuAttention
from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape
from atomesh.engine.attention.torch_attention import TorchAttention
from atomesh.engine.execution.device import DTYPES
from atomesh.engine.kernels.library import load_kernels
from atomesh.testing.paged_batch import lay_out

OWNER = "benchmarks/attention.py"
BLOCK_SIZE = 32
SHAPES = {
    "SmolLM2-135M": (9, 3, 64),
    "Qwen2.5-0.5B": (14, 2, 64),
    "a head each": (8, 8, 128),
}
BATCHES = {
    "decode 32 × 256": [(255, 256)] * 32,
    "decode 32 × 2,048": [(2047, 2048)] * 32,
    "decode 1 × 8,192": [(8191, 8192)],
    "prefill 512": [(0, 512)],
    "prefill 2,048": [(0, 2048)],
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians of one layer's seconds; `bytes` of keys and values read once, `flops` of both products."""

    batch: str
    ours_s: float
    torch_s: float
    bytes: int
    flops: float

    @property
    def is_decode(self) -> bool:
        return self.batch.startswith("decode")


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    commit: str
    shape: str
    dtype: str
    bandwidth: float
    timings: list[Timing]

    def as_markdown(self) -> str:
        heading = [
            "one layer",
            "kernel, ms",
            "PyTorch, ms",
            "ratio",
            "kernel reads",
            "of bandwidth",
            "computes",
        ]
        return (
            f"### Paged attention\n\n{self.machine}, commit {self.commit}. Heads as in {self.shape}, "
            f"{self.dtype}, blocks of {BLOCK_SIZE} tokens in no order. Kernel and PyTorch in turn, medians; "
            f"memory is read at {self.bandwidth / 1e9:.1f} GB/s at best.\n\n"
            f"{table(heading, [self._row(timing) for timing in self.timings])}"
        )

    def _row(self, timing: Timing) -> list[str]:
        rate = timing.bytes / timing.ours_s
        reads = [f"{rate / 1e9:.1f} GB/s", f"{rate / self.bandwidth:.0%}"] if timing.is_decode else ["–", "–"]
        return [
            timing.batch,
            f"{timing.ours_s * 1e3:.2f}",
            f"{timing.torch_s * 1e3:.2f}",
            f"{timing.torch_s / timing.ours_s:.2f}",
            *reads,
            f"{timing.flops / timing.ours_s / 1e9:.0f} GFLOP/s",
        ]


def measure(name: str, shape: AttentionShape, dtype: torch.dtype, options: argparse.Namespace) -> Timing:
    batch = BATCHES[name]
    num_blocks = sum(-(-end // BLOCK_SIZE) for _, end in batch)
    spans = lay_out(batch, BLOCK_SIZE, seed=1, num_blocks=num_blocks)
    size = (num_blocks, len(shape.windows), 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
    pool = PagedKV(torch.rand(size).to(dtype))
    kernels = load_kernels()
    assert kernels is not None
    rows = sum(end - start for start, end in batch)
    heads = torch.randn(rows, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim).to(dtype)
    query, key_value = heads[:, : shape.num_heads], heads[:, shape.num_heads :]
    both = [CpuAttention(shape, pool, kernels).prepare(spans), TorchAttention(shape, pool).prepare(spans)]
    seconds: list[list[float]] = [[], []]
    for round_ in range(options.rounds + 1):
        layer = round_ % len(shape.windows)
        for attention, taken in zip(both, seconds, strict=True):
            taken.append(timed(partial(attention.attend, layer, query, key_value)))
    pairs = sum((end - start) * (end + start + 1) / 2 for start, end in batch)
    return Timing(
        batch=name,
        ours_s=median(seconds[0][1:]),
        torch_s=median(seconds[1][1:]),
        bytes=sum(end for _, end in batch) * 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize,
        flops=4.0 * shape.num_heads * shape.head_dim * pairs,
    )


def timed(work: Callable[[], torch.Tensor]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="SmolLM2-135M", help="whose heads")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of queries, keys and values")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both")
    parser.add_argument("--batches", choices=BATCHES, nargs="*", default=list(BATCHES), help="which to run")
    parser.add_argument("--layers", type=int, default=4, help="of the pool, used in turn")
    parser.add_argument("--rounds", type=int, default=15, help="of which the median counts")
    parser.add_argument("--read-mib", type=int, default=512, help="read to find the memory's bandwidth")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", type=Path, help="page whose section to replace")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    if load_kernels() is None:
        sys.exit("there are no kernels on this machine: no compiler, or no such processor")
    torch.set_num_threads(options.threads)
    num_heads, num_kv_heads, head_dim = SHAPES[options.shape]
    shape = AttentionShape(num_heads, num_kv_heads, head_dim, head_dim**-0.5, None, (None,) * options.layers)
    with torch.inference_mode():
        report = Report(
            machine=describe_machine(),
            commit=commit(),
            shape=options.shape,
            dtype=options.dtype,
            bandwidth=read_bandwidth(options.read_mib * 2**20),
            timings=[measure(name, shape, DTYPES[options.dtype], options) for name in options.batches],
        )
    publish(options, OWNER, report.as_markdown(), asdict(report))


if __name__ == "__main__":
    main()
