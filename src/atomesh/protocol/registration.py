"""How a worker makes itself known to a gateway over HTTP: by its address, and a proof of the secret.

    GET  /registration → {"nonce"}                       of the gateway, good for NONCE_TTL_S
    POST /registration   Registration, kind "register"   → 200, to be repeated every RENEW_S
    POST /registration   Registration, kind "leave"      → 200

The proof covers every field, so nobody without the secret can name an address, or send a worker away; what
is heard on the way and said again changes nothing: the nonce expires, and a message is about one incarnation.
"""

import hashlib
import hmac
from typing import Literal

import msgspec

PATH = "/registration"
NONCE_TTL_S = 30.0
RENEW_S = 5.0
LEASE_S = 60.0  # a worker that has not renewed for so long, and is lost, is forgotten

Kind = Literal["register", "leave"]


class Offer(msgspec.Struct, frozen=True):
    nonce: str


class Registration(msgspec.Struct, frozen=True):
    """`address` is where the gateway reaches the worker; `proof` is in hexadecimal digits."""

    kind: Kind
    address: str
    incarnation: str
    nonce: str
    proof: str


def register(secret: bytes, kind: Kind, address: str, incarnation: str, nonce: str) -> Registration:
    return Registration(kind, address, incarnation, nonce, _proof(secret, kind, address, incarnation, nonce))


def is_genuine(secret: bytes, given: Registration) -> bool:
    """In constant time."""
    wanted = _proof(secret, given.kind, given.address, given.incarnation, given.nonce)
    return hmac.compare_digest(wanted.encode(), given.proof.encode())


def _proof(secret: bytes, *words: str) -> str:
    text = msgspec.json.encode(words)  # unlike words put together, of one meaning only
    return hmac.new(secret, b"atomesh registration\0" + text, hashlib.sha256).hexdigest()
