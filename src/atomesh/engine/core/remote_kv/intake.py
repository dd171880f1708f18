"""The blocks of hand-offs on their way in, and of those that are over but may still be written to.

A block granted to a peer is reserved until what comes into it is verified, then held like any other. When a
transfer ends early, its blocks that nothing has come into are quarantined until the transport has fenced it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.request import RequestState
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_handoff import Reserve
from atomesh.protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Claim:
    """A decode leg that wants its KV; `address` is the prefill worker's KV plane, if it is known."""

    request: RequestState
    ticket: Ticket
    address: str | None


@dataclass(slots=True, eq=False)
class Transfer:
    """A prompt's KV on its way in. `table` are its blocks: those of `missing` indices reserved, others held.

    The first `num_registered` blocks are in the prefix cache. `claim` is who waits for it. It has begun once
    the peer has done something about the grant. Announced is what has been pushed to its end, committed what
    has come.
    """

    ticket: Ticket
    peer: str
    grant: bytes
    num_tokens: int
    block_hashes: list[BlockHash]
    table: list[int]
    missing: set[int]
    num_registered: int
    lease_end_s: float
    has_begun: bool = False
    is_announced: bool = False
    is_committed: bool = False
    claim: Claim | None = None

    @property
    def arrived(self) -> list[int]:
        return [block for index, block in enumerate(self.table) if index not in self.missing]


class Intake:
    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._transfers: dict[bytes, Transfer] = {}
        self._by_grant: dict[bytes, Transfer] = {}
        self._quarantine: dict[bytes, list[int]] = {}

    def __iter__(self) -> Iterator[Transfer]:
        """Those that are not over, oldest first; they may end meanwhile."""
        return iter(tuple(self._transfers.values()))

    def of_ticket(self, ticket_id: bytes) -> Transfer | None:
        return self._transfers.get(ticket_id)

    def of_grant(self, grant: bytes) -> Transfer | None:
        return self._by_grant.get(grant)

    @property
    def num_blocks(self) -> int:
        """Granted and not yet handed over; a block that two transfers share counts twice."""
        return sum(len(transfer.table) for transfer in self._transfers.values())

    def has_room(self, wish: Reserve, spare: int) -> bool:
        """Room for what is wished, with `spare` blocks left."""
        return self._kv.has_room(wish.num_tokens, self._kv.match_hashes(_hashes(wish)), spare)

    def open(self, wish: Reserve, peer: str, grant: bytes, lease_end_s: float) -> Transfer:
        """There is room: hold what the prefix cache has, reserve the rest."""
        hashes = _hashes(wish)
        matched = self._kv.match_hashes(hashes)
        self._kv.hold(matched)
        missing = range(len(matched), self._kv.num_blocks_of(wish.num_tokens))
        transfer = Transfer(
            ticket=wish.ticket,
            peer=peer,
            grant=grant,
            num_tokens=wish.num_tokens,
            block_hashes=hashes,
            table=matched + [self._kv.pool.reserve() for _ in missing],
            missing=set(missing),
            num_registered=len(matched),
            lease_end_s=lease_end_s,
        )
        self._transfers[wish.ticket.ticket_id] = self._by_grant[grant] = transfer
        return transfer

    def fill(self, transfer: Transfer, indices: Iterable[int]) -> None:
        """These blocks have come, verified; what is here without a gap can be found by others."""
        for index in transfer.missing.intersection(indices):
            transfer.missing.remove(index)
            self._kv.pool.fill(transfer.table[index])
        for index in range(transfer.num_registered, len(transfer.block_hashes)):
            if index in transfer.missing:
                return
            if not self._kv.register_block(transfer.block_hashes[index], transfer.table, index):
                return
            transfer.num_registered = index + 1

    def hand_over(self, transfer: Transfer, request: RequestState) -> None:
        """The request's sequences share the blocks from now on."""
        for sequence in request.sequences.values():
            self._kv.adopt(sequence, transfer.table, transfer.num_tokens, transfer.num_registered)

    def close(self, transfer: Transfer) -> bool:
        """The transfer is over; True if it must be fenced before all its blocks can be used again."""
        del self._transfers[transfer.ticket.ticket_id], self._by_grant[transfer.grant]
        self._kv.let_go(transfer.arrived)
        if not transfer.missing:
            return False
        unwritten = [transfer.table[index] for index in sorted(transfer.missing)]
        self._kv.pool.quarantine(unwritten)
        self._quarantine[transfer.grant] = unwritten
        return True

    def fenced(self, grant: bytes) -> None:
        self._kv.pool.lift(self._quarantine.pop(grant, []))

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        for transfer in self._transfers.values():
            yield f"transfer {transfer.ticket.ticket_id.hex()}", transfer.arrived

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        return sum(len(transfer.table) - len(transfer.missing) for transfer in self._transfers.values())


def _hashes(wish: Reserve) -> list[BlockHash]:
    return [BlockHash(block_hash) for block_hash in wish.block_hashes]
