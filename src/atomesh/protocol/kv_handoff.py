"""The KV plane's control messages: how a prefill worker (P) hands a prompt's KV to a decode worker (D).

    P → D  Reserve          D → P  Grant, or Refuse: then P keeps the KV for a later Pull
    P → D  (pushed blocks, moved by the transport)
    P → D  Commit           D → P  Committed, or Refuse
    D → P  Pull             late binding: D has room now, and grants; P pushes and commits as above
    either Withdraw         forget this ticket
    either Renew            P still computes, or D still queues the request: keep what you have for it

And how a worker (Y) that is to compute a prompt has its beginning sent from a prefix cache (X):

    Y → X  Fetch            X → Y  (pushed blocks), or Refuse: then Y computes them

Peers name blocks by (grant, index in the sequence), never by address.
"""

from typing import Literal

import msgspec

from atomesh.protocol.ticket import Ticket

GRANT_BYTES = 16

Refusal = Literal["full", "ticket", "gone", "coverage", "damaged"]


class Reserve(msgspec.Struct, frozen=True, tag="reserve"):
    """Room for the KV of `num_tokens` tokens; `block_hashes` are those of their full blocks."""

    ticket: Ticket
    block_hashes: list[bytes]
    num_tokens: int


class Grant(msgspec.Struct, frozen=True, tag="grant"):
    """Push these blocks of the sequence, by index; the others are here already."""

    ticket_id: bytes
    grant: bytes
    missing: list[int]


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """No, to a Reserve, a Commit, a Pull or a Fetch.

    `gone`: nothing is known of this ticket any more, or a block that was asked for is no longer cached.
    """

    ticket_id: bytes
    reason: Refusal


class Commit(msgspec.Struct, frozen=True, omit_defaults=True, tag="commit"):
    """All that was granted has been pushed: the KV of `num_tokens` tokens is complete, or about to be.

    Said with the last push, so that nobody waits for a worker that computes; and again, `taken`, if the
    receiver has acknowledged every push and still has not answered: what is missing then never comes.
    """

    ticket_id: bytes
    grant: bytes
    num_tokens: int
    taken: bool = False


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    ticket_id: bytes


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """D has room now for what P still keeps under this ticket."""

    ticket: Ticket
    grant: bytes
    missing: list[int]


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    ticket_id: bytes


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    ticket_id: bytes


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Y wants these blocks of X's prefix cache, all or none: those of its prompt from index `first` on.

    They are named by their hashes, which Y has computed from its own prompt and salt.
    """

    ticket: Ticket
    grant: bytes
    first: int
    block_hashes: list[bytes]


HandoffMessage = Reserve | Grant | Refuse | Commit | Committed | Pull | Renew | Withdraw | Fetch
