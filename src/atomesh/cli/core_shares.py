"""Which cores each worker of this machine computes on."""

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from atomesh.errors import ConfigurationError

CoreShare = tuple[int, ...]

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> CoreShare:
    """The cores this process may run on, no more of them than its cgroup's quota pays for."""
    cores = (
        sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    try:
        quota = parse_cpu_max(CPU_MAX.read_text())
    except OSError:
        quota = None
    return tuple(cores) if quota is None else tuple(cores)[: max(1, math.ceil(quota))]


def parse_cpu_max(text: str) -> float | None:
    """Cores' worth of time in a cgroup v2 `cpu.max` ("200000 100000" is two); None for no limit."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def check_threads(threads: int | None) -> None:
    """Raises ConfigurationError for more threads than there are cores, or none; None is for us to choose."""
    most = len(usable_cores())
    if threads is not None and not 1 <= threads <= most:
        raise ConfigurationError(
            f"--threads is {threads}; it must lie between 1 and {most}, the cores that this process may use"
        )


def check_cores(cores: Sequence[int]) -> None:
    """Raises ConfigurationError for a core that this process may not run on."""
    if not hasattr(os, "sched_getaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    for core in cores:
        if core not in allowed:
            raise ConfigurationError(f"--cores is {core}; it must be one of {_ranges(sorted(allowed))}")


def share_cores(cores: Sequence[int], workers: int) -> list[CoreShare]:
    """Neighbouring cores for each worker, sizes differing by one at most; too few cores are shared."""
    if workers >= len(cores):
        return [(cores[index % len(cores)],) for index in range(workers)]
    edges = [len(cores) * index // workers for index in range(workers + 1)]
    return [tuple(cores[start:end]) for start, end in pairwise(edges)]


def _ranges(cores: Sequence[int]) -> str:
    """0-3, 8, 10-11."""
    starts = [core for core in cores if core - 1 not in cores]
    ends = [core for core in cores if core + 1 not in cores]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in pairs)
