"""The least work before the request, by count: prompt tokens still to be computed, and sequences."""

from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.policies.shortlist import shortlist
from atomesh.mesh.placement.scorers.work import work_before
from atomesh.mesh.placement.seats import Seat


class LeastWork(Counting):
    stays_whole = False

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        return shortlist(seats, _order, case.inputs.dice)


def _order(seat: Seat) -> float:
    """By work, and where that is equal by turns."""
    return work_before(seat.worker) + seat.worker.dispatched * 1e-9
