"""Any worker, each as likely as the others."""

from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.seats import Seat


class RandomChoice(Counting):
    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        return (seats[case.inputs.dice.randrange(len(seats))],)
