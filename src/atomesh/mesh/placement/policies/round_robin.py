"""Each worker in turn, by address, whatever its load."""

from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.seats import Seat


class RoundRobin(Counting):
    def __init__(self) -> None:
        self._last = ""

    def nominate(self, seats: Sequence[Seat], _case: Case) -> Sequence[Seat]:
        later = [seat for seat in seats if seat.worker.address > self._last]
        turn = min(later or seats, key=lambda seat: seat.worker.address)
        self._last = turn.worker.address
        return (turn,)
