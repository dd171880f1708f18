"""When a first token could be there at best, whichever policy decides: what none can do is not begun."""

from collections.abc import Sequence

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.case import make_case
from atomesh.mesh.placement.inputs import PlacementInputs
from atomesh.mesh.placement.scorers.compute import compute
from atomesh.mesh.placement.scorers.fetch import fetch
from atomesh.mesh.placement.scorers.queue import queue
from atomesh.mesh.placement.seats import take_seat, with_fetches


def earliest_first_token_s(workers: Sequence[WorkerSnapshot], inputs: PlacementInputs) -> float | None:
    """Seconds from now, at the quickest worker that may prefill; None unless all have been measured."""
    if not all(worker.incarnation in inputs.costs.steps for worker in workers):
        return None
    seats = [take_seat(worker, inputs) for worker in workers]
    able = with_fetches([seat for seat in seats if seat.worker.weights.prefill] or seats, seats, inputs)
    case = make_case(inputs, able)
    return min((queue(seat, case) + fetch(seat, case) + compute(seat, case) for seat in able), default=None)
