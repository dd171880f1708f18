"""Consistent hashing with bounded loads: a key's worker is the first in the key's own order that has room.

Each key orders the workers by a hash of both (rendezvous hashing, Thaler and Ravishankar, 1998), so that a
worker that comes or goes moves only its share of the keys. None gets more than a factor of the mean load
(Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018).
"""

import hashlib
from collections.abc import Sequence
from math import ceil

from atomesh.mesh.placement.seats import Seat


def pick_by_key(key: bytes, seats: Sequence[Seat], most_load: float) -> Seat:
    """`most_load` is the factor of the mean number of sequences, counting the one to be placed; above 1."""
    total = sum(_load(seat) for seat in seats) + 1
    bound = ceil(most_load * total / len(seats))
    open_seats = [seat for seat in seats if _load(seat) < bound]
    return max(open_seats, key=lambda seat: _rank(key, seat))


def _load(seat: Seat) -> int:
    worker = seat.worker
    return max(worker.sequences, worker.load.running + worker.load.waiting)


def _rank(key: bytes, seat: Seat) -> bytes:
    """Of the worker's name, which outlives its restarts."""
    told = seat.worker.description
    name = seat.worker.address if told is None else told.worker_id
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key[:64], digest_size=8).digest()
