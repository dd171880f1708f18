"""The decode worker's half of hand-offs: grants room, takes blocks in, and gives them to who claims them.

    Reserve ─▶ FILLING ──Commit──▶ COMMITTED ──claimed──▶ its sequences hold the blocks
                 │  ▲                  │
                 │  Pull by a claim    └─ not claimed in time ─▶ let go
                 └─ damaged, late, lost, withdrawn ─▶ what was verified stays in the prefix cache,
                                                      the rest is quarantined until fenced

A claim (a decode leg) that finds nothing here pulls when its turn comes, and until then the prefill worker is
told from time to time to keep the KV. One whose transfer fails is settled as failed, and whoever schedules
decides what that means.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.actions import Admit, Cancel
from atomesh.engine.core.remote_kv.config import RENEWALS_PER_LEASE, RemoteKVConfig
from atomesh.engine.core.remote_kv.grant_mint import GrantMint
from atomesh.engine.core.remote_kv.intake import Claim, Intake, Transfer
from atomesh.engine.core.remote_kv.outbox import Outbox
from atomesh.engine.core.remote_kv.ticket_gate import TicketGate
from atomesh.engine.core.request import RequestState
from atomesh.protocol.block_hash import HASH_BYTES
from atomesh.protocol.kv_handoff import (
    Commit,
    Committed,
    Grant,
    Pull,
    Refusal,
    Refuse,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.protocol.ticket import Ticket

GROWTH_BLOCKS = 1  # beyond the prompt's own, so that the first token preempts nobody


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of the KV that a request waited for. Without a `failure` its sequences hold the blocks."""

    request: RequestState
    failure: str | None = None


class KVReceiver:
    def __init__(
        self,
        config: RemoteKVConfig,
        kv: KVCacheManager,
        gate: TicketGate,
        outbox: Outbox,
        mint: GrantMint,
    ) -> None:
        self.is_blocked = False  # an older sequence lacks blocks: nothing is granted before it has them
        self._config = config
        self._kv = kv
        self._gate = gate
        self._outbox = outbox
        self._mint = mint
        self._intake = Intake(kv)
        self._pending: dict[bytes, Claim] = {}
        self._renew_at_s = 0.0  # while claims are pending
        self._settled: list[Settlement] = []

    def reserve(self, peer: str, message: Reserve, now: float, incarnation: str) -> None:
        ticket = message.ticket
        reason = self._find_malformed(message) or self._gate.refusal(ticket, "reserve", now, incarnation)
        if reason is not None:
            self._refuse(peer, ticket, reason, "ticket")
        elif self._intake.of_ticket(ticket.ticket_id) is not None:
            return  # pulled before the offer came: the pull's grant stands
        elif ticket.ticket_id in self._pending or not self._may_grant(message):
            self._refuse(peer, ticket, "full", "full")
        else:
            transfer = self._open(message, peer, now)
            self._outbox.send(peer, Grant(ticket.ticket_id, transfer.grant, sorted(transfer.missing)))

    def claim(self, claim: Claim, now: float) -> bool:
        """Take charge of a decode leg's KV; False when it must be pulled, once there is room.

        Unless it was False, the request turns up among the settled ones, at once or later.
        """
        reason = self._gate.refusal(claim.ticket, "decode", now)
        transfer = self._intake.of_ticket(claim.ticket.ticket_id)
        if reason is not None:
            self._outbox.refusals[reason] += 1
            self._settled.append(Settlement(claim.request, reason))
        elif transfer is not None:
            self._claim_transfer(transfer, claim, now)
        elif claim.address is None:
            self._settled.append(Settlement(claim.request, "not_offered"))
        else:
            if not self._pending:
                self._renew_at_s = now + self._config.offer_lease_s / RENEWALS_PER_LEASE
            self._pending[claim.ticket.ticket_id] = claim
            return False
        return True

    def pending_pull(self, request: RequestState) -> Claim | None:
        """The request's claim, if it waits for its turn to pull."""
        return next((claim for claim in self._pending.values() if claim.request is request), None)

    def pull(self, claim: Claim, spare: int, now: float) -> bool:
        """Its turn has come: make room, ask for its KV; False if fewer than `spare` blocks would be left."""
        sequence = claim.request.first_sequence
        num_tokens = len(sequence.prompt_token_ids)
        wish = Reserve(claim.ticket, list(self._kv.full_hashes(sequence, num_tokens)), num_tokens)
        growth = self._kv.num_blocks_of(sequence.num_tokens) - self._kv.num_blocks_of(num_tokens)
        if not self._intake.has_room(wish, spare + growth):
            return False
        del self._pending[claim.ticket.ticket_id]
        transfer = self._open(wish, claim.address or "", now)
        transfer.claim = claim
        self._outbox.send(transfer.peer, Pull(claim.ticket, transfer.grant, sorted(transfer.missing)))
        return True

    @property
    def has_settled(self) -> bool:
        return bool(self._settled)

    def take_settled(self) -> list[Settlement]:
        settled, self._settled = self._settled, []
        return settled

    def drop(self, request: RequestState) -> None:
        """The request has ended: what it waits for is not wanted any more."""
        self._settled = [one for one in self._settled if one.request is not request]
        pending = self.pending_pull(request)
        if pending is not None:
            del self._pending[pending.ticket.ticket_id]
            self._gate.bury(pending.ticket.ticket_id)
            self._outbox.send(pending.address or "", Withdraw(pending.ticket.ticket_id))
        for transfer in self._intake:
            if transfer.claim is not None and transfer.claim.request is request:
                transfer.claim = None
                self._withdraw(transfer, "aborted")

    def drop_attempt(self, attempt_id: str) -> None:
        """End what came for a request, by the ticket's own name for it, that has not been claimed."""
        for transfer in self._intake:
            if transfer.ticket.request_id == attempt_id and transfer.claim is None:
                self._withdraw(transfer, "aborted")

    def received(self, grant: bytes, indices: Iterable[int], now: float) -> None:
        transfer = self._intake.of_grant(grant)
        if transfer is None or transfer.is_committed:
            return  # it was cancelled, and its blocks are in quarantine
        self._intake.fill(transfer, indices)
        self._extend(transfer, now)
        if transfer.is_announced and not transfer.missing:
            self._complete(transfer, now)

    def arriving(self, grant: bytes, now: float) -> None:
        """A slow link is no reason to stop waiting for what comes over it, until the ticket is over."""
        transfer = self._intake.of_grant(grant)
        if transfer is not None and transfer.missing:
            ticket_end_s = self._gate.end_of(transfer.ticket.ticket_id, now)
            end_s = min(now + self._lease_s(transfer), ticket_end_s)
            transfer.lease_end_s = max(transfer.lease_end_s, end_s)

    def damaged(self, grant: bytes) -> None:
        transfer = self._intake.of_grant(grant)
        if transfer is not None:
            self._outbox.send(transfer.peer, Refuse(transfer.ticket.ticket_id, "damaged"))
            self._end(transfer, "damaged")

    def commit(self, peer: str, message: Commit, now: float) -> None:
        transfer = self._intake.of_grant(message.grant)
        if transfer is None or transfer.peer != peer or transfer.ticket.ticket_id != message.ticket_id:
            if not self._gate.is_buried(message.ticket_id):  # else it has crossed our answer
                self._outbox.refusals["commit_unknown"] += 1
        elif message.num_tokens != transfer.num_tokens or (transfer.missing and message.taken):
            self._outbox.send(peer, Refuse(message.ticket_id, "coverage"))
            self._end(transfer, "coverage")
        elif transfer.missing and not transfer.is_announced:
            transfer.is_announced = True
            self._extend(transfer, now)
        elif not transfer.missing and not transfer.is_committed:
            self._complete(transfer, now)

    def renewed(self, peer: str, message: Renew, now: float) -> None:
        """The prompt is still being computed; no renewal outlasts the ticket, none helps what is claimed."""
        transfer = self._intake.of_ticket(message.ticket_id)
        if transfer is None or transfer.peer != peer or transfer.is_committed or transfer.claim is not None:
            return
        end_s = min(now + self._config.grant_lease_s, self._gate.end_of(message.ticket_id, now))
        transfer.lease_end_s = max(transfer.lease_end_s, end_s)

    def ended_by_peer(self, peer: str, ticket_id: bytes, outcome: str) -> None:
        """The prefill worker withdraws, or refuses our pull."""
        transfer = self._intake.of_ticket(ticket_id)
        if transfer is not None and transfer.peer == peer:
            self._end(transfer, outcome)

    def fenced(self, grant: bytes) -> None:
        self._intake.fenced(grant)

    def peer_lost(self, peer: str) -> None:
        for transfer in self._intake:
            if transfer.peer != peer or transfer.is_committed:
                continue
            claim = transfer.claim
            if claim is None:
                self._close(transfer, "peer_lost")  # it can be pulled when it is claimed
                continue
            self._end(transfer, "peer_lost")
            if claim.address is not None and claim.address != peer:
                self._outbox.send(claim.address, Withdraw(claim.ticket.ticket_id))

    def tick(self, now: float) -> None:
        if self._pending and now >= self._renew_at_s:
            self._renew_at_s = now + self._config.offer_lease_s / RENEWALS_PER_LEASE
            for claim in self._pending.values():
                self._outbox.send(claim.address or "", Renew(claim.ticket.ticket_id))
        for transfer in self._intake:
            if now < transfer.lease_end_s:
                continue
            if transfer.is_committed:
                self._end(transfer, "unclaimed")
            elif transfer.claim is None:
                self._revoke(transfer, "expired")
            else:
                self._withdraw(transfer, "expired")

    def yield_blocks(self) -> bool:
        """Give up the newest transfer that nobody has claimed; False if there is none."""
        unclaimed = [transfer for transfer in self._intake if transfer.claim is None]
        if not unclaimed:
            return False
        if unclaimed[-1].is_committed:
            self._end(unclaimed[-1], "yielded")
        else:
            self._revoke(unclaimed[-1], "yielded")
        return True

    def deadlines(self) -> Iterator[float]:
        yield from (transfer.lease_end_s for transfer in self._intake)
        if self._pending:
            yield self._renew_at_s

    def claims(self) -> Iterator[RequestState]:
        """The requests whose KV is on its way or has just been settled."""
        yield from (one.claim.request for one in self._intake if one.claim is not None)
        yield from (one.request for one in self._settled)

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        return self._intake.holds()

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        return self._intake.num_holds

    def _find_malformed(self, message: Reserve) -> str | None:
        is_sound = (
            message.num_tokens > 0
            and len(message.block_hashes) == message.num_tokens // self._kv.block_size
            and all(len(block_hash) == HASH_BYTES for block_hash in message.block_hashes)
        )
        return None if is_sound else "reserve_malformed"

    def _may_grant(self, message: Reserve) -> bool:
        limit = int(self._kv.pool.num_blocks * (1 - self._config.watermark))
        granted = self._intake.num_blocks + self._kv.num_blocks_of(message.num_tokens)
        return not self.is_blocked and granted <= limit and self._intake.has_room(message, GROWTH_BLOCKS)

    def _open(self, wish: Reserve, peer: str, now: float) -> Transfer:
        lease_end_s = now + self._config.grant_lease_s
        transfer = self._intake.open(wish, peer, self._mint.mint(wish.ticket), lease_end_s)
        if transfer.missing:
            targets = {index: transfer.table[index] for index in sorted(transfer.missing)}
            self._outbox.actions.append(Admit(peer, transfer.grant, targets))
        return transfer

    def _extend(self, transfer: Transfer, now: float) -> None:
        """Something has come of the grant: from now on, how long may the next take?"""
        transfer.has_begun = True
        transfer.lease_end_s = now + self._lease_s(transfer)

    def _lease_s(self, transfer: Transfer) -> float:
        """A prefill worker that has begun to push, and has no more to compute, keeps nobody waiting.

        All that is still to come, from whomever, may come before what this transfer waits for.
        """
        if transfer.has_begun and transfer.claim is not None:
            return self._config.stall_s(self._kv.pool.num_reserved if transfer.missing else 0)
        return self._config.grant_lease_s

    def _complete(self, transfer: Transfer, now: float) -> None:
        transfer.is_committed = True
        transfer.lease_end_s = now + self._config.offer_lease_s
        self._outbox.send(transfer.peer, Committed(transfer.ticket.ticket_id))
        if transfer.claim is not None:
            self._hand_over(transfer, transfer.claim)

    def _claim_transfer(self, transfer: Transfer, claim: Claim, now: float) -> None:
        sequence = claim.request.first_sequence
        num_tokens = len(sequence.prompt_token_ids)
        hashes = self._kv.full_hashes(sequence, num_tokens)
        transfer.claim = claim
        if (hashes, num_tokens) != (transfer.block_hashes, transfer.num_tokens):
            self._withdraw(transfer, "mismatch")
        elif transfer.is_committed:
            self._hand_over(transfer, claim)
        else:
            transfer.lease_end_s = now + self._lease_s(transfer)

    def _hand_over(self, transfer: Transfer, claim: Claim) -> None:
        self._intake.hand_over(transfer, claim.request)
        self._settled.append(Settlement(claim.request))
        transfer.claim = None
        self._end(transfer, "committed")

    def _withdraw(self, transfer: Transfer, outcome: str) -> None:
        self._outbox.send(transfer.peer, Withdraw(transfer.ticket.ticket_id))
        self._end(transfer, outcome)

    def _revoke(self, transfer: Transfer, outcome: str) -> None:
        """The peer keeps its KV, for a pull when a claim comes."""
        self._outbox.send(transfer.peer, Refuse(transfer.ticket.ticket_id, "full"))
        self._close(transfer, outcome)

    def _end(self, transfer: Transfer, outcome: str) -> None:
        """This hand-off is over for good; whoever still waits for it waits in vain."""
        self._gate.bury(transfer.ticket.ticket_id)
        self._close(transfer, outcome)
        if transfer.claim is not None:
            self._settled.append(Settlement(transfer.claim.request, outcome))

    def _close(self, transfer: Transfer, outcome: str) -> None:
        self._outbox.transfers[f"received_{outcome}"] += 1
        if self._intake.close(transfer):
            self._outbox.actions.append(Cancel(transfer.grant))

    def _refuse(self, peer: str, ticket: Ticket, reason: str, answer: Refusal) -> None:
        self._outbox.refusals[reason] += 1
        self._outbox.send(peer, Refuse(ticket.ticket_id, answer))
