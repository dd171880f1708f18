"""Affinity by what was sent where: a tree of the prompts' blocks, each with the workers that were given it.

Where at least half of a prompt was sent before, it goes again; else to the worker that holds the least of the
tree. When loads differ too much, the least loaded gets the request whatever it knows. This is the rule of
SGLang's router, on hashes of blocks in place of text.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.policies.policy import Counting
from atomesh.mesh.placement.scorers.work import work_before
from atomesh.mesh.placement.seats import Seat
from atomesh.protocol.block_hash import BlockHash

MATCHED_SHARE = 0.5
MOST_APART = 32  # sequences between the busiest and the idlest worker …
MOST_TIMES = 1.1  # … and so many times as much: then balance goes first
MAX_BLOCKS = 2**18


class CacheAware(Counting):
    """Remembers MAX_BLOCKS blocks at most, the most recently used."""

    reads_prompt = True

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._holders: OrderedDict[BlockHash, set[str]] = OrderedDict()
        self._sizes: Counter[str] = Counter()

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        seat = self._choose(seats, case.request.block_hashes)
        self._remember(seat.worker.incarnation, case.request.block_hashes)
        return (seat,)

    def _choose(self, seats: Sequence[Seat], hashes: Sequence[BlockHash]) -> Seat:
        idlest = min(seats, key=lambda seat: work_before(seat.worker))
        loads = [seat.worker.sequences for seat in seats]
        if max(loads) - min(loads) > MOST_APART and max(loads) > MOST_TIMES * min(loads):
            return idlest
        if not hashes:
            return idlest
        matched, holders = self._match(hashes)
        if matched >= MATCHED_SHARE * len(hashes):
            known = [seat for seat in seats if seat.worker.incarnation in holders]
            if known:
                return min(known, key=lambda seat: work_before(seat.worker))
        return min(seats, key=lambda seat: self._sizes[seat.worker.incarnation])

    def _match(self, hashes: Sequence[BlockHash]) -> tuple[int, set[str]]:
        """How many of the first blocks are known, and who has been given all of them."""
        holders: set[str] = set()
        for depth, block_hash in enumerate(hashes):
            further = self._holders.get(block_hash, set())
            further = further & holders if depth else further
            if not further:
                return depth, holders
            holders = further
        return len(hashes), holders

    def _remember(self, incarnation: str, hashes: Sequence[BlockHash]) -> None:
        """Tails before heads, so that what is forgotten first is a tail."""
        for block_hash in reversed(hashes):
            holders = self._holders.setdefault(block_hash, set())
            self._holders.move_to_end(block_hash)
            if incarnation not in holders:
                holders.add(incarnation)
                self._sizes[incarnation] += 1
        while len(self._holders) > self._max_blocks:
            _, holders = self._holders.popitem(last=False)
            self._sizes.subtract(holders)
            self._sizes += Counter()  # drops the zeros
