"""A gateway's leave for one hand-off: this request, from this prefill worker to this decode worker, once.

Of a prefix that is fetched, `prefill` is who has it and `decode` who wants it.

The gateway mints, owns and releases tickets. Times are durations: a worker counts `ttl_s` on its own clock
from the moment it first sees the ticket.
"""

import hashlib
import hmac
import struct

import msgspec

TICKET_ID_BYTES = 16


class Ticket(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """`gateway`, `prefill` and `decode` are incarnations; `request_id` names one attempt of one request.

    `serial` grows with each ticket of a gateway, so that a worker need not remember the old ones for ever.
    """

    ticket_id: bytes
    gateway: str
    serial: int
    request_id: str
    prefill: str
    decode: str
    ttl_s: float
    mac: bytes = b""


def sign(secret: bytes, ticket: Ticket) -> Ticket:
    return msgspec.structs.replace(ticket, mac=_mac(secret, ticket))


def is_genuine(secret: bytes, ticket: Ticket) -> bool:
    """Signed with `secret`, nothing changed since; in constant time."""
    return len(ticket.ticket_id) == TICKET_ID_BYTES and hmac.compare_digest(_mac(secret, ticket), ticket.mac)


def _mac(secret: bytes, ticket: Ticket) -> bytes:
    texts = (ticket.gateway, ticket.request_id, ticket.prefill, ticket.decode)
    parts = [ticket.ticket_id, *(text.encode("utf-8", "surrogatepass") for text in texts)]
    framed = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    numbers = struct.pack("<Qd", ticket.serial & (2**64 - 1), ticket.ttl_s)
    return hmac.new(secret, b"atomesh ticket\0" + framed + numbers, hashlib.sha256).digest()
