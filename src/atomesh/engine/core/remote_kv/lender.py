"""The lending half of a prefix fetch: pushes blocks of the own prefix cache to a worker that asks for them.

    Fetch ─▶ all there? hold, push ──Pushed──▶ let go
                 └─ gone, or too dear to hold ─▶ Refuse, and the other computes them

Nothing is computed here, and nothing waits: what is pushed is held until the push has ended, which the
transport's deadline sees to whatever becomes of the peer.
"""

from collections.abc import Iterator

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.actions import Push
from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.remote_kv.outbox import Outbox
from atomesh.engine.core.remote_kv.ticket_gate import TicketGate
from atomesh.protocol.block_hash import HASH_BYTES, BlockHash
from atomesh.protocol.kv_handoff import GRANT_BYTES, Fetch, Refusal, Refuse


class KVLender:
    def __init__(self, config: RemoteKVConfig, kv: KVCacheManager, gate: TicketGate, outbox: Outbox) -> None:
        self._config = config
        self._kv = kv
        self._gate = gate
        self._outbox = outbox
        self._loans: dict[int, Push] = {}

    def asked(self, peer: str, message: Fetch, now: float, incarnation: str) -> None:
        reason = self._find_malformed(message) or self._gate.refusal(message.ticket, "lend", now, incarnation)
        if reason is not None:
            self._outbox.refusals[reason] += 1
            self._outbox.send(peer, Refuse(message.ticket.ticket_id, "ticket"))
            return
        blocks = self._kv.match_hashes([BlockHash(one) for one in message.block_hashes])
        if len(blocks) < len(message.block_hashes):
            self._decline(peer, message, "gone")
        elif not self._can_spare(blocks):
            self._decline(peer, message, "full")
        else:
            self._push(peer, message, blocks)

    def pushed(self, push_id: int) -> None:
        self._end(push_id, "complete")

    def push_failed(self, push_id: int) -> None:
        self._end(push_id, "failed")

    def peer_lost(self, peer: str) -> None:
        """Its pushes have ended."""
        for push_id in [push_id for push_id, loan in self._loans.items() if loan.peer == peer]:
            self._end(push_id, "failed")

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        for push_id, loan in self._loans.items():
            yield f"loan {push_id}", list(loan.blocks.values())

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        return sum(len(loan.blocks) for loan in self._loans.values())

    def _find_malformed(self, message: Fetch) -> str | None:
        is_sound = (
            message.first >= 0
            and 0 < len(message.block_hashes) <= self._kv.pool.num_blocks
            and len(message.grant) == GRANT_BYTES
            and all(len(block_hash) == HASH_BYTES for block_hash in message.block_hashes)
        )
        return None if is_sound else "fetch_malformed"

    def _can_spare(self, blocks: list[int]) -> bool:
        """What is held for others must leave own requests the share of the pool that grants leave them."""
        pool = self._kv.pool
        left = pool.num_available - sum(map(pool.is_idle, blocks))
        return left >= int(pool.num_blocks * self._config.watermark)

    def _push(self, peer: str, message: Fetch, blocks: list[int]) -> None:
        self._kv.hold(blocks)
        self._gate.bury(message.ticket.ticket_id)
        deadline_s = self._config.stall_s(self.num_holds + len(blocks))
        by_index = dict(enumerate(blocks, start=message.first))
        push = Push(peer, message.grant, by_index, self._outbox.next_push_id(), deadline_s)
        self._loans[push.push_id] = push
        self._outbox.actions.append(push)

    def _decline(self, peer: str, message: Fetch, reason: Refusal) -> None:
        self._gate.bury(message.ticket.ticket_id)
        self._outbox.transfers[f"lent_refused_{reason}"] += 1
        self._outbox.send(peer, Refuse(message.ticket.ticket_id, reason))

    def _end(self, push_id: int, outcome: str) -> None:
        loan = self._loans.pop(push_id, None)
        if loan is not None:
            self._kv.let_go(list(loan.blocks.values()))
            self._outbox.transfers[f"lent_{outcome}"] += 1
