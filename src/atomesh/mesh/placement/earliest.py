"""When a first token could be there at best, whichever policy decides: what none can do is not begun.

Nothing is refused by it that an idle worker would take: that request measures the worker, and without such
ones a prediction that is wrong would never be put right.
"""

from collections.abc import Sequence

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.case import make_case
from atomesh.mesh.placement.inputs import PlacementInputs
from atomesh.mesh.placement.scorers.compute import compute
from atomesh.mesh.placement.scorers.fetch import fetch
from atomesh.mesh.placement.scorers.queue import queue
from atomesh.mesh.placement.seats import take_seat, with_fetches


def earliest_first_token_s(workers: Sequence[WorkerSnapshot], inputs: PlacementInputs) -> float | None:
    """Seconds from now, at the quickest worker that may prefill; None where it is idle, and unless the costs
    of all that may are settled."""
    seats = [take_seat(worker, inputs) for worker in workers]
    able = [seat for seat in seats if seat.worker.weights.prefill] or seats
    if not able or not all(seat.worker.incarnation in inputs.costs.settled for seat in able):
        return None
    able = list(with_fetches(able, seats, inputs))
    case = make_case(inputs, able)
    expected_s = [queue(seat, case) + fetch(seat, case) + compute(seat, case) for seat in able]
    first_s = min(expected_s)
    return None if able[expected_s.index(first_s)].worker.is_idle else first_s
