"""What has the same session key stays with one worker, unless that has twice its share of the load.

Requests without a key go by their prompt's beginning. Keys of different salts have nothing in common.
"""

import hashlib
from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.bounded_hash import pick_by_key
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.policies.prefix_hash import PrefixHash
from atomesh.mesh.placement.seats import Seat

MOST_LOAD = 2.0


class Session(Counting):
    reads_prompt = True  # of who has no key

    def __init__(self) -> None:
        self._without_key = PrefixHash()

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        request = case.request
        if not request.session:
            return self._without_key.nominate(seats, case)
        text = f"{len(request.salt)} {request.salt}{request.session}"
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return (pick_by_key(key, seats, MOST_LOAD),)
