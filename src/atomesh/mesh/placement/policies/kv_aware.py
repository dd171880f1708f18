"""The least sum of seconds: queue, fetch, computation of what is not cached, wasted work, interference."""

from collections.abc import Sequence
from dataclasses import replace

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.popularity import Popularity
from atomesh.mesh.placement.policies.shortlist import shortlist
from atomesh.mesh.placement.seats import Seat


class KVAware:
    scorers = "kv_aware"
    stays_whole = False
    reads_prompt = True

    def __init__(self) -> None:
        self._popularity = Popularity()

    def study(self, case: Case) -> Case:
        prefix = case.best_prefix
        if prefix is None:
            return case
        return replace(case, popularity=self._popularity.use(prefix, case.inputs.now))

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        return shortlist(seats, _load_s, case.inputs.dice)


def _load_s(seat: Seat) -> float:
    return seat.queued_s + seat.step.decoding_s(seat.context_tokens, seat.batch)
