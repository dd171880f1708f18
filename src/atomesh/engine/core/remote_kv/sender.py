"""The prefill worker's half of hand-offs: offers KV, pushes it block by block while it is computed, commits.

    begin ──▶ ASKED ──Grant──▶ GRANTED ──all is on its way──▶ COMMITTING ──Committed──▶ over
                │                │ ▲                             │
                └─ Refuse(full) ─┤ │ Pull, from any state        │
                   or peer lost  ▼ │                             │
                               OFFERED ◀─────────────────────────┘

An offer whose prompt is being computed lives as long as its sequence; afterwards it holds the blocks itself,
under a lease, which decode renews while it queues the request. What is being pushed is held until the push
has ended, whatever becomes of the offer.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.actions import Push
from atomesh.engine.core.remote_kv.config import RENEWALS_PER_LEASE, RemoteKVConfig
from atomesh.engine.core.remote_kv.outbox import Outbox
from atomesh.engine.core.remote_kv.ticket_gate import TicketGate
from atomesh.engine.core.request import TokenSequence
from atomesh.protocol.generation import PrefillLeg
from atomesh.protocol.kv_handoff import (
    GRANT_BYTES,
    Commit,
    Committed,
    Grant,
    Pull,
    Refuse,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.protocol.ticket import Ticket


class OfferState(Enum):
    ASKED = auto()
    OFFERED = auto()
    GRANTED = auto()
    COMMITTING = auto()


@dataclass(slots=True, eq=False)
class Offer:
    """One prompt's KV on its way out. `sequence` computes it; when that is over, `held` are its blocks.

    `unsent` are the indices still to be pushed under `grant`, `in_flight` the pushes under it.
    """

    ticket: Ticket
    request_id: str
    peer: str
    num_tokens: int
    num_blocks: int
    sequence: TokenSequence | None
    state: OfferState = OfferState.ASKED
    grant: bytes = b""
    unsent: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    lease_end_s: float = 0.0
    renew_at_s: float = 0.0

    def finished_blocks(self, block_size: int) -> list[int]:
        """The leading blocks whose content is final."""
        if self.sequence is None:
            return self.held
        return self.sequence.block_table[: self.sequence.num_computed_tokens // block_size]


@dataclass(frozen=True, slots=True)
class Delivery:
    """KV that `peer` may still keep for a decode leg, to be told if none will come."""

    peer: str
    ticket_id: bytes
    until_s: float


class KVSender:
    def __init__(self, config: RemoteKVConfig, kv: KVCacheManager, gate: TicketGate, outbox: Outbox) -> None:
        self._config = config
        self._kv = kv
        self._gate = gate
        self._outbox = outbox
        self._offers: dict[bytes, Offer] = {}
        self._pushes: dict[int, Push] = {}
        self._delivered: OrderedDict[str, Delivery] = OrderedDict()

    def begin(self, sequence: TokenSequence, leg: PrefillLeg) -> None:
        """The prompt's first chunk is scheduled: ask for room, and do not wait for the answer."""
        num_tokens = len(sequence.prompt_token_ids)
        offer = Offer(
            ticket=leg.ticket,
            request_id=sequence.request.request.request_id,
            peer=leg.decode_address,
            num_tokens=num_tokens,
            num_blocks=self._kv.num_blocks_of(num_tokens),
            sequence=sequence,
        )
        self._offers[leg.ticket.ticket_id] = offer
        hashes = self._kv.full_hashes(sequence, num_tokens)
        self._outbox.send(offer.peer, Reserve(leg.ticket, list(hashes), num_tokens))

    def advance(self, leg: PrefillLeg) -> None:
        """A chunk of the prompt is computed: push what it finished."""
        offer = self._offers.get(leg.ticket.ticket_id)
        if offer is not None:
            self._push_finished(offer)

    def finish(self, leg: PrefillLeg, now: float, *, is_open: bool) -> None:
        """The leg is over, its sequence about to let its blocks go; `is_open`: a choice will go on."""
        offer = self._offers.get(leg.ticket.ticket_id)
        if offer is None or offer.sequence is None:
            return
        if not is_open:
            self._withdraw(offer, "not_needed")
            return
        offer.held = offer.sequence.block_table.copy()
        self._kv.hold(offer.held)
        offer.sequence = None
        offer.lease_end_s = now + self._config.offer_lease_s
        self._push_finished(offer)

    def drop(self, request_id: str) -> None:
        """The request was aborted or has failed here, maybe after its leg."""
        for offer in [one for one in self._offers.values() if one.request_id == request_id]:
            self._withdraw(offer, "aborted")
        delivery = self._delivered.pop(request_id, None)
        if delivery is not None:
            self._outbox.send(delivery.peer, Withdraw(delivery.ticket_id))

    def drop_attempt(self, attempt_id: str) -> None:
        """As `drop`, by the ticket's own name for the request."""
        for offer in [one for one in self._offers.values() if one.ticket.request_id == attempt_id]:
            self._withdraw(offer, "aborted")

    def granted(self, peer: str, message: Grant, now: float) -> None:
        offer = self._offers.get(message.ticket_id)
        if offer is None:
            return  # ended meanwhile, and the peer has been told
        if offer.peer != peer or offer.state is not OfferState.ASKED:
            self._outbox.refusals["grant_unasked"] += 1
            return
        self._accept(offer, message.grant, message.missing, now)

    def pulled(self, peer: str, message: Pull, now: float, incarnation: str) -> None:
        reason = self._gate.refusal(message.ticket, "pull", now, incarnation)
        ticket_id = message.ticket.ticket_id
        if reason == "ticket_dead" or (reason is None and ticket_id not in self._offers):
            self._outbox.send(peer, Refuse(ticket_id, "gone"))
        elif reason is not None:
            self._outbox.refusals[reason] += 1
            self._outbox.send(peer, Refuse(ticket_id, "ticket"))
        else:
            offer = self._offers[ticket_id]
            offer.peer = peer
            self._accept(offer, message.grant, message.missing, now)

    def refused(self, peer: str, message: Refuse, now: float) -> None:
        offer = self._offers.get(message.ticket_id)
        if offer is None or offer.peer != peer:
            return
        if message.reason == "full":
            self._keep(offer, now)
        else:
            self._end(offer, f"refused_{message.reason}")

    def committed(self, peer: str, message: Committed, now: float) -> None:
        offer = self._offers.get(message.ticket_id)
        if offer is not None and offer.peer == peer and offer.state is OfferState.COMMITTING:
            until_s = now + self._config.offer_lease_s
            self._delivered[offer.request_id] = Delivery(peer, message.ticket_id, until_s)
            self._end(offer, "committed")

    def withdrawn(self, message: Withdraw) -> None:
        """The decode worker no longer wants it; it may say so over a connection of its own."""
        offer = self._offers.get(message.ticket_id)
        if offer is not None:
            self._end(offer, "withdrawn")

    def renewed(self, message: Renew, now: float) -> None:
        """The decode worker has no room yet, but will; no renewal outlasts the ticket."""
        offer = self._offers.get(message.ticket_id)
        if offer is not None and offer.sequence is None:
            end_s = min(now + self._config.offer_lease_s, self._gate.end_of(message.ticket_id, now))
            offer.lease_end_s = max(offer.lease_end_s, end_s)

    def pushed(self, push_id: int, now: float) -> None:
        offer = self._end_push(push_id)
        if offer is not None:
            offer.lease_end_s = now + self._config.offer_lease_s
            if offer.state is OfferState.COMMITTING and not offer.in_flight:
                self._commit(offer)

    def push_failed(self, push_id: int) -> None:
        offer = self._end_push(push_id)
        if offer is not None:
            self._withdraw(offer, "push_failed")

    def peer_lost(self, peer: str, now: float) -> None:
        """Its pushes have ended; what it was offered may still be pulled over another connection."""
        for push_id in [push.push_id for push in self._pushes.values() if push.peer == peer]:
            self._end_push(push_id)
        for offer in self._offers.values():
            if offer.peer == peer:
                self._keep(offer, now)

    def tick(self, now: float) -> None:
        while self._delivered and next(iter(self._delivered.values())).until_s <= now:
            self._delivered.popitem(last=False)
        for offer in list(self._offers.values()):
            if offer.sequence is None and now >= offer.lease_end_s:
                self._withdraw(offer, "expired")
            elif offer.state is OfferState.GRANTED and now >= offer.renew_at_s:
                self._outbox.send(offer.peer, Renew(offer.ticket.ticket_id))
                offer.renew_at_s = now + self._config.grant_lease_s / RENEWALS_PER_LEASE

    def deadlines(self) -> Iterator[float]:
        for offer in self._offers.values():
            if offer.sequence is None:
                yield offer.lease_end_s
            if offer.state is OfferState.GRANTED:
                yield offer.renew_at_s

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Whose sake, and which blocks are held for it."""
        for offer in self._offers.values():
            yield f"offer {offer.ticket.ticket_id.hex()}", offer.held
        for push in self._pushes.values():
            yield f"push {push.push_id}", list(push.blocks.values())

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        return sum(len(offer.held) for offer in self._offers.values()) + self._num_on_their_way

    def _accept(self, offer: Offer, grant: bytes, missing: list[int], now: float) -> None:
        wanted = set(missing)
        if (
            len(grant) != GRANT_BYTES
            or len(wanted) != len(missing)
            or not wanted <= set(range(offer.num_blocks))
        ):
            self._outbox.refusals["grant_malformed"] += 1
            self._withdraw(offer, "malformed")
            return
        offer.state = OfferState.GRANTED
        offer.grant = grant
        offer.unsent = wanted
        offer.in_flight = set()
        offer.lease_end_s = now + self._config.offer_lease_s
        offer.renew_at_s = now + self._config.grant_lease_s / RENEWALS_PER_LEASE
        self._push_finished(offer)

    def _keep(self, offer: Offer, now: float) -> None:
        """No grant any more: the KV waits for a pull."""
        offer.state = OfferState.OFFERED
        offer.unsent = set()
        offer.in_flight = set()
        offer.lease_end_s = now + self._config.offer_lease_s

    def _push_finished(self, offer: Offer) -> None:
        finished = offer.finished_blocks(self._kv.block_size)
        ready = {index: finished[index] for index in sorted(offer.unsent) if index < len(finished)}
        if ready:
            deadline_s = self._config.stall_s(self._num_on_their_way + len(ready))
            push = Push(offer.peer, offer.grant, ready, self._outbox.next_push_id(), deadline_s)
            self._pushes[push.push_id] = push
            self._kv.hold(ready.values())
            offer.unsent -= ready.keys()
            offer.in_flight.add(push.push_id)
            self._outbox.actions.append(push)
        self._commit_if_complete(offer)

    @property
    def _num_on_their_way(self) -> int:
        """Blocks that are being pushed, to whomever."""
        return sum(len(push.blocks) for push in self._pushes.values())

    def _commit_if_complete(self, offer: Offer) -> None:
        """At once with the last push: this worker may be computing when the push ends."""
        if offer.state is OfferState.GRANTED and offer.sequence is None and not offer.unsent:
            offer.state = OfferState.COMMITTING
            self._commit(offer)

    def _commit(self, offer: Offer) -> None:
        words = Commit(offer.ticket.ticket_id, offer.grant, offer.num_tokens, taken=not offer.in_flight)
        self._outbox.send(offer.peer, words)

    def _end_push(self, push_id: int) -> Offer | None:
        """Let its blocks go; the offer whose present grant it served, if any."""
        push = self._pushes.pop(push_id, None)
        if push is None:
            return None
        self._kv.let_go(list(push.blocks.values()))
        offer = next((one for one in self._offers.values() if push_id in one.in_flight), None)
        if offer is not None:
            offer.in_flight.remove(push_id)
        return offer

    def _withdraw(self, offer: Offer, outcome: str) -> None:
        self._outbox.send(offer.peer, Withdraw(offer.ticket.ticket_id))
        self._end(offer, outcome)

    def _end(self, offer: Offer, outcome: str) -> None:
        del self._offers[offer.ticket.ticket_id]
        self._kv.let_go(offer.held)
        self._gate.bury(offer.ticket.ticket_id)
        self._outbox.transfers[f"sent_{outcome}"] += 1
