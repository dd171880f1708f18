"""Which tickets are good here, and what for. Each purpose is served once.

A worker remembers the newest tickets. What it has forgotten it still refuses: a gateway's serials only grow,
so a serial at or below the highest forgotten one is not new.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from atomesh.engine.core.remote_kv.config import RemoteKVConfig
from atomesh.protocol.ticket import Ticket, is_genuine

Purpose = Literal["prefill", "reserve", "decode", "pull", "fetch", "lend"]
MAX_TTL_S = 3600.0
MAX_GATEWAYS = 4096  # incarnations, each with a low-water mark of its own


@dataclass(slots=True)
class _Seen:
    ticket: Ticket
    since_s: float
    served: set[Purpose] = field(default_factory=set)
    is_dead: bool = False


class TicketGate:
    def __init__(self, config: RemoteKVConfig) -> None:
        self._config = config
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()
        self._low_water: dict[str, int] = {}

    def refusal(
        self, ticket: Ticket, purpose: Purpose, now: float, presenter: str | None = None
    ) -> str | None:
        """Why `ticket` is not good for `purpose`, in a word; None when it is, and then never again.

        `presenter` is the incarnation that the worker who shows it has proved; None: a gateway shows it.
        """
        reason = self._find_forgery(ticket, purpose, presenter)
        if reason is not None:
            return reason
        seen = self._seen.get(ticket.ticket_id)
        if seen is None:
            if not self._is_new(ticket):
                return "ticket_serial"
            seen = self._remember(ticket, now)
        reason = _find_misuse(seen, ticket, purpose, now)
        if reason is None:
            seen.served.add(purpose)
        return reason

    def bury(self, ticket_id: bytes) -> None:
        """The ticket's hand-off is over here: a tombstone, so that nothing that comes late revives it."""
        seen = self._seen.get(ticket_id)
        if seen is not None:
            seen.is_dead = True

    def is_buried(self, ticket_id: bytes) -> bool:
        seen = self._seen.get(ticket_id)
        return seen is not None and seen.is_dead

    def is_party(self, ticket_id: bytes, incarnation: str) -> bool:
        """False for a ticket known here that names somebody else: his word about it counts for nothing."""
        seen = self._seen.get(ticket_id)
        return seen is None or incarnation in (seen.ticket.prefill, seen.ticket.decode)

    def end_of(self, ticket_id: bytes, now: float) -> float:
        """When the ticket will be over, or was; `now` for one that is not known."""
        seen = self._seen.get(ticket_id)
        return now if seen is None else seen.since_s + seen.ticket.ttl_s

    def _find_forgery(self, ticket: Ticket, purpose: Purpose, presenter: str | None) -> str | None:
        config = self._config
        if not config.secret:
            return "handoff_off"
        if not is_genuine(config.secret, ticket) or not 0 < ticket.ttl_s <= MAX_TTL_S:
            return "ticket_forged"
        addressee, other = ticket.decode, ticket.prefill
        if purpose in ("prefill", "pull", "lend"):
            addressee, other = other, addressee
        if addressee != config.incarnation:
            return "ticket_incarnation"
        return None if presenter in (None, other) else "ticket_peer"

    def _is_new(self, ticket: Ticket) -> bool:
        return ticket.serial > self._low_water.get(ticket.gateway, -1) and (
            ticket.gateway in self._low_water or len(self._low_water) < MAX_GATEWAYS
        )

    def _remember(self, ticket: Ticket, now: float) -> _Seen:
        self._low_water.setdefault(ticket.gateway, -1)
        seen = self._seen[ticket.ticket_id] = _Seen(ticket, now)
        if len(self._seen) > self._config.max_tickets:
            _, oldest = self._seen.popitem(last=False)
            gateway, serial = oldest.ticket.gateway, oldest.ticket.serial
            self._low_water[gateway] = max(self._low_water[gateway], serial)
        return seen


def _find_misuse(seen: _Seen, ticket: Ticket, purpose: Purpose, now: float) -> str | None:
    if seen.ticket != ticket or purpose in seen.served:
        return "ticket_replayed"
    if seen.is_dead:
        return "ticket_dead"
    return "ticket_expired" if now - seen.since_s > ticket.ttl_s else None
