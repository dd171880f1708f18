"""Mutual proof of the cluster secret on a connection: HMAC-SHA256 over the peer's nonce, roles kept apart."""

import hashlib
import hmac
from typing import Literal

NONCE_BYTES = 32
Side = Literal["gateway", "worker"]


def proof(secret: bytes, prover: Side, nonce: bytes) -> bytes:
    """What `prover` sends to show that it knows `secret`; bound to its role, so it cannot be reflected."""
    return hmac.new(
        secret, b"atomesh token plane " + prover.encode() + b"\0" + nonce, hashlib.sha256
    ).digest()


def is_valid_proof(secret: bytes, prover: Side, nonce: bytes, given: bytes) -> bool:
    """Constant-time; a nonce of the wrong size proves nothing."""
    return len(nonce) == NONCE_BYTES and hmac.compare_digest(proof(secret, prover, nonce), given)
