"""Settles where, how wide and how politely a worker computes."""

import os
from collections.abc import MutableMapping, Sequence

from atomesh.cli.core_shares import usable_cores

# libgomp's own choice where threads outnumber the cores: some microseconds, then sleep. A worker's cores are
# never all its own: the gateway, clients and the transfer thread use them too, and a thread that spins keeps
# its partner, whose core was taken, from moving over. Measured on two busy cores, two threads, 135M
# parameters, one stream: 97 ms a step; asleep at once 95–160; spinning as long as libgomp does 275–870.
SPIN_COUNT = 1000


def claim_cores(cores: Sequence[int], threads: int | None, niceness: int = 0) -> int:
    """Take the cores, none for all that this process has; returns the number of threads to compute with.

    To be called before torch is imported, whose thread pools read all this once, and by the main thread,
    whose children inherit it. What the user's environment says of spinning stays.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    if niceness:
        os.nice(niceness)
    width = threads or len(cores) or len(usable_cores())
    set_thread_policy(os.environ, width)
    return width


def set_thread_policy(environment: MutableMapping[str, str], threads: int) -> None:
    environment["OMP_NUM_THREADS"] = str(threads)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
