"""Settles where, how wide and how politely a worker computes."""

import os
from collections.abc import MutableMapping, Sequence

from atomesh.cli.core_shares import usable_cores
from atomesh.thread_policy import limit_spinning


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
    limit_spinning(environment)
