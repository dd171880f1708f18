"""What a scorer is: one term of the sum, in seconds, of one worker or of one pair."""

from collections.abc import Callable

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat

SeatScorer = Callable[[Seat, Case], float]
PairScorer = Callable[[Seat, Seat, Case], float]  # prefill, decode
