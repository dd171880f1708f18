"""What this machine is, and how fast it reads memory and multiplies matrices at best."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """Enough to compare figures by, nothing that names a host."""

    cpu: str
    cores: int
    threads: int
    memory_gib: int
    torch: str

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib} GiB, "
            f"torch {self.torch} with {self.threads} threads"
        )


def describe_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        memory_gib=round(memory / 2**30),
        torch=torch.__version__,
    )


def read_bandwidth(size_bytes: int) -> float:
    """Bytes a second that torch reads from a buffer of `size_bytes`, which should exceed every cache.

    The better of a sum and of a matrix-vector product, which is what decoding one token comes to.
    """
    columns = 2048
    matrix = torch.ones(size_bytes // (4 * columns), columns)
    vector = torch.ones(columns)
    seconds = min(_best_seconds(matrix.sum), _best_seconds(lambda: torch.mv(matrix, vector)))
    return matrix.nbytes / seconds


def matrix_rate(dtype: torch.dtype, size: int) -> float:
    """Floating-point operations a second of a square matrix product, two for each multiply-add."""
    left, right = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2.0 * size**3 / _best_seconds(lambda: left @ right)


def _best_seconds(operation: Callable[[], object], repeats: int = 5) -> float:
    operation()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        best = min(best, time.perf_counter() - start)
    return best


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{next(names, platform.machine())} ({', '.join(wide)})"
