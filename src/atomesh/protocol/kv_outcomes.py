"""The words by which workers count what became of hand-offs and fetches, and what they refused."""

from typing import get_args

from atomesh.protocol.kv_handoff import Refusal

OTHER = "other"
# Of connections on the KV plane: by a stranger before the hello, or by a peer after it.
PLANE_REFUSALS = (
    "greeting",
    "secret",
    "mac",
    "size",
    "message",
    "layout",
    "memory",
    "timeout",
    "crowd",
    "grant",
    "block",
    "checksum",
    "flood",
)
_REFUSED = tuple(f"refused_{reason}" for reason in get_args(Refusal))
_ENDS = {
    "sent": ("committed", "not_needed", "aborted", "withdrawn", "push_failed", "expired", "malformed"),
    "received": (
        "committed",
        "withdrawn",
        "aborted",
        "expired",
        "unclaimed",
        "yielded",
        "damaged",
        "coverage",
        "mismatch",
        "peer_lost",
    ),
    "fetched": ("complete", "not_needed", "late", "damaged", "yielded", "aborted", "peer_lost"),
    "lent": ("complete", "failed"),
}

TRANSFERS = frozenset(f"{side}_{end}" for side, ends in _ENDS.items() for end in (*ends, *_REFUSED))
REFUSALS = frozenset(
    (
        "ticket_dead",
        "ticket_expired",
        "ticket_forged",
        "ticket_incarnation",
        "ticket_peer",
        "ticket_replayed",
        "ticket_serial",
        "reserve_malformed",
        "fetch_malformed",
        "commit_unknown",
        "grant_unasked",
        "grant_malformed",
        *PLANE_REFUSALS,
    )
)
