"""The simplest placement: to whoever has the least to do."""

from collections.abc import Sequence

from atomesh.mesh.cluster.registry import WorkerSnapshot

FRESH_S = 1.0


def least_loaded(candidates: Sequence[WorkerSnapshot], now: float) -> WorkerSnapshot | None:
    """The worker with the fewest requests, ties to the one given fewest so far; None without a candidate.

    One silent for more than FRESH_S, which may hang, is taken only when all are.
    """

    def cost(worker: WorkerSnapshot) -> tuple[bool, int, int]:
        requests = max(worker.in_flight, worker.load.running + worker.load.waiting)
        return (now - worker.heard_at > FRESH_S, requests, worker.dispatched)

    return min(candidates, key=cost, default=None)
