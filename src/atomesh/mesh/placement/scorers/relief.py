"""What later requests gain when a popular prefix gets one more home: it is computed once, and used often.

As many are to come as came of late, and each would wait shorter by what the queues differ now. It never makes
up for more than the work that is done twice.
"""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.scorers.waste import spared
from atomesh.mesh.placement.seats import Seat


def relief(seat: Seat, case: Case) -> float:
    shorter_s = case.holder_queued_s - seat.queued_s
    if shorter_s <= 0.0 or not case.popularity:
        return 0.0
    return -min((1.0 + case.waste_price) * spared(seat, case), case.popularity * shorter_s)
