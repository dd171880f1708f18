"""The gateway's tickets: each minted for one attempt of one request, and owned until the request is over."""

import secrets
from itertools import count

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.protocol.ticket import TICKET_ID_BYTES, Ticket, sign

TTL_S = 600.0  # long enough for the longest queue; what a ticket may hold on to ends with leases, far earlier


class TicketOffice:
    """`incarnation` names this gateway's life; serials grow within it."""

    def __init__(self, secret: bytes, incarnation: str, ttl_s: float = TTL_S) -> None:
        self.incarnation = incarnation
        self.minted = 0
        self._secret = secret
        self._ttl_s = ttl_s
        self._serials = count(1)
        self._open: set[bytes] = set()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def mint(self, request_id: str, prefill: WorkerSnapshot, decode: WorkerSnapshot) -> Ticket:
        ticket = Ticket(
            ticket_id=secrets.token_bytes(TICKET_ID_BYTES),
            gateway=self.incarnation,
            serial=next(self._serials),
            request_id=request_id,
            prefill=prefill.incarnation,
            decode=decode.incarnation,
            ttl_s=self._ttl_s,
        )
        self._open.add(ticket.ticket_id)
        self.minted += 1
        return sign(self._secret, ticket)

    def release(self, ticket: Ticket) -> None:
        self._open.discard(ticket.ticket_id)
