"""Whom to look at when there are too many to price them all: the best of each kind, and two at random."""

from collections.abc import Callable, Sequence
from heapq import nlargest, nsmallest

from atomesh.mesh.placement.inputs import Dice
from atomesh.mesh.placement.seats import Seat

FEW = 16  # so many are priced without a shortlist
BEST = 4
AT_RANDOM = 2


def shortlist(seats: Sequence[Seat], load: Callable[[Seat], float], dice: Dice) -> Sequence[Seat]:
    """All when they are few; else the best holders of the prompt, the least by `load`, and AT_RANDOM."""
    if len(seats) <= FEW:
        return seats
    holders = [seat for seat in seats if seat.ready_tokens]
    chosen = [
        *nlargest(BEST, holders, key=lambda seat: seat.ready_tokens),
        *nsmallest(BEST, seats, key=load),
        *(seats[dice.randrange(len(seats))] for _ in range(AT_RANDOM)),
    ]
    return list({seat.worker.address: seat for seat in chosen}.values())
