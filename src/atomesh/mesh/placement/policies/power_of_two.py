"""Of two workers drawn at random the one with less work before it.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001.
"""

from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.scorers.work import work_before
from atomesh.mesh.placement.seats import Seat


class PowerOfTwo(Counting):
    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        if len(seats) == 1:
            return seats
        dice = case.inputs.dice
        first = dice.randrange(len(seats))
        second = (first + 1 + dice.randrange(len(seats) - 1)) % len(seats)
        return (min((seats[first], seats[second]), key=lambda seat: work_before(seat.worker)),)
