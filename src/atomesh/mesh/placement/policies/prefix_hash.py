"""Prompts that begin alike go to the same worker, as long as that has no more than its share of the load."""

from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.bounded_hash import pick_by_key
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.scorers.work import work_before
from atomesh.mesh.placement.seats import Seat

PREFIX_BLOCKS = 8
MOST_LOAD = 1.25


class PrefixHash(Counting):
    """A prompt shorter than a block has no prefix, and goes where the least work is."""

    reads_prompt = True

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        hashes = case.request.block_hashes
        if not hashes:
            return (min(seats, key=lambda seat: work_before(seat.worker)),)
        return (pick_by_key(hashes[min(PREFIX_BLOCKS, len(hashes)) - 1], seats, MOST_LOAD),)
