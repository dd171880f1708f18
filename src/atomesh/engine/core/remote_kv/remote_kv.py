"""The hand-off's state machines under one roof: events in, actions out. Moves no byte, opens no connection.

Whoever moves the bytes tells what happened (`heard` … `tick`) and carries out, in order, what `take_actions`
gives. Nothing happens between the calls, so `now` may be any clock that does not run backwards.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.remote_kv.actions import Action
from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.engine.core.remote_kv.fetcher import KVFetcher
from atomesh.engine.core.remote_kv.grant_mint import GrantMint
from atomesh.engine.core.remote_kv.lender import KVLender
from atomesh.engine.core.remote_kv.outbox import Outbox
from atomesh.engine.core.remote_kv.receiver import KVReceiver
from atomesh.engine.core.remote_kv.sender import KVSender
from atomesh.engine.core.remote_kv.ticket_gate import TicketGate
from atomesh.engine.core.request import RequestState
from atomesh.errors import ServiceUnavailableError
from atomesh.protocol.kv_handoff import (
    Commit,
    Committed,
    Fetch,
    Grant,
    HandoffMessage,
    Pull,
    Refuse,
    Renew,
    Reserve,
    Withdraw,
)
from atomesh.protocol.ticket import Ticket


class RemoteKV:
    def __init__(self, config: RemoteKVConfig, kv: KVCacheManager) -> None:
        self.incarnation = config.incarnation
        self._outbox = Outbox()
        self._gate = TicketGate(config)
        self.sender = KVSender(config, kv, self._gate, self._outbox)
        mint = GrantMint(config)
        self.receiver = KVReceiver(config, kv, self._gate, self._outbox, mint)
        self.lender = KVLender(config, kv, self._gate, self._outbox)
        self.fetcher = KVFetcher(config, kv, self._gate, self._outbox, mint)

    @property
    def transfers(self) -> Counter[str]:
        """What ended, by its outcome after "sent_" or "received_", of a fetch after "lent_" or "fetched_"."""
        return self._outbox.transfers

    @property
    def refusals(self) -> Counter[str]:
        """Messages and tickets that were refused, by reason."""
        return self._outbox.refusals

    def take_actions(self) -> list[Action]:
        return self._outbox.take()

    def heard(self, peer: str, message: HandoffMessage, now: float, incarnation: str) -> None:
        """`incarnation` is what the peer has proved to be, at the hello of its connection."""
        if not self._may_say(message, incarnation):
            self.refusals["ticket_peer"] += 1
            return
        match message:
            case Reserve():
                self.receiver.reserve(peer, message, now, incarnation)
            case Commit():
                self.receiver.commit(peer, message, now)
            case Renew():
                self.sender.renewed(message, now)
                self.receiver.renewed(peer, message, now)
            case Grant():
                self.sender.granted(peer, message, now)
            case Committed():
                self.sender.committed(peer, message, now)
            case Pull():
                self.sender.pulled(peer, message, now, incarnation)
            case Fetch():
                self.lender.asked(peer, message, now, incarnation)
            case Refuse() | Withdraw():
                self._heard_no(peer, message, now)

    def _heard_no(self, peer: str, message: Refuse | Withdraw, now: float) -> None:
        if isinstance(message, Withdraw):
            self.sender.withdrawn(message)
            self.receiver.ended_by_peer(peer, message.ticket_id, "withdrawn")
        else:
            self.sender.refused(peer, message, now)
            self.receiver.ended_by_peer(peer, message.ticket_id, f"refused_{message.reason}")
            self.fetcher.refused(peer, message)

    def _may_say(self, message: HandoffMessage, incarnation: str) -> bool:
        """A ticket that is shown is looked at where it is served; a no is taken from whoever was asked."""
        if isinstance(message, Reserve | Pull | Fetch | Refuse):
            return True
        return self._gate.is_party(message.ticket_id, incarnation)

    def pushed(self, push_id: int, now: float) -> None:
        self.sender.pushed(push_id, now)
        self.lender.pushed(push_id)

    def push_failed(self, push_id: int, reason: str, now: float) -> None:
        self.sender.push_failed(push_id)
        self.lender.push_failed(push_id)

    def received(self, grant: bytes, indices: Iterable[int], now: float) -> None:
        self.receiver.received(grant, indices, now)
        self.fetcher.received(grant, indices)

    def arriving(self, grant: bytes, now: float) -> None:
        """Blocks under it come along, if slowly."""
        self.receiver.arriving(grant, now)

    def damaged(self, grant: bytes, reason: str, now: float) -> None:
        self.receiver.damaged(grant)
        self.fetcher.damaged(grant)

    def fenced(self, grant: bytes, now: float) -> None:
        self.receiver.fenced(grant)
        self.fetcher.fenced(grant)

    def peer_lost(self, peer: str, reason: str, now: float) -> None:
        self.sender.peer_lost(peer, now)
        self.receiver.peer_lost(peer)
        self.lender.peer_lost(peer)
        self.fetcher.peer_lost(peer)

    def tick(self, now: float) -> None:
        """Let leases lapse and renew our own; the scheduler does it before each step."""
        self.sender.tick(now)
        self.receiver.tick(now)
        self.fetcher.tick(now)

    def next_deadline(self, now: float) -> float | None:
        """The time at which `tick` next has something to do, if nothing happens before."""
        halves = (self.sender, self.receiver, self.fetcher)
        return min(chain.from_iterable(half.deadlines() for half in halves), default=None)

    def check_in(self, ticket: Ticket, now: float) -> None:
        """A prefill leg has come with `ticket`. Raises ServiceUnavailableError if it is not good here."""
        reason = self._gate.refusal(ticket, "prefill", now)
        if reason is not None:
            self.refusals[reason] += 1
            raise ServiceUnavailableError(
                f"the worker refuses the ticket of this hand-off ({reason}); try again"
            )

    def drop(self, request_id: str, request: RequestState | None) -> None:
        """The request has ended, or did with its leg; with `request`, its sequences may be arriving."""
        self.sender.drop(request_id)
        if request is not None:
            self.receiver.drop(request)
            self.fetcher.drop(request)

    def drop_attempt(self, attempt_id: str) -> None:
        """The gateway has aborted the attempt that tickets call so: let go of what no live request owns."""
        self.sender.drop_attempt(attempt_id)
        self.receiver.drop_attempt(attempt_id)

    def yield_blocks(self) -> bool:
        """Give up what is on its way in and can best be done without; False if there is nothing such."""
        return self.fetcher.yield_blocks() or self.receiver.yield_blocks()

    def claims(self) -> Iterator[RequestState]:
        """The requests whose KV is on its way or has just been settled."""
        yield from self.receiver.claims()
        yield from self.fetcher.claims()

    def holds(self) -> Iterator[tuple[str, list[int]]]:
        """Owners, and the blocks that are held for them."""
        yield from self.sender.holds()
        yield from self.receiver.holds()
        yield from self.lender.holds()
        yield from self.fetcher.holds()

    @property
    def num_holds(self) -> int:
        """How many holds `holds` names."""
        handed_off = self.sender.num_holds + self.receiver.num_holds
        return handed_off + self.lender.num_holds + self.fetcher.num_holds
