"""How a caller shows a key, and who may use the admin routes. Keys are compared in constant time."""

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from atomesh.errors import AuthenticationError, PermissionDeniedError


class KeyRing:
    """Knows digests of keys, never the keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def holds(self, given: bytes) -> bool:
        """Takes the same time whichever key it is, and when it is none."""
        digest = _digest(given)
        return sum([hmac.compare_digest(digest, known) for known in self._digests]) > 0


class AdminGuard:
    """ASGI layer around one admin route: only the holder of the admin token comes in."""

    def __init__(self, app: ASGIApp, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = bearer_token(scope)
        if token is None:
            raise AuthenticationError("this route needs the admin token, as `Authorization: Bearer TOKEN`")
        if not self._ring.holds(token):
            raise PermissionDeniedError("this route needs the admin token; what was given is another")
        await self._app(scope, receive, send)


def bearer_token(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else None
    return None


def api_key(scope: Scope) -> bytes | None:
    """A Bearer token, else what is in `x-api-key`, as Anthropic's clients send it."""
    token = bearer_token(scope)
    if token is not None:
        return token
    return next((value.strip() for name, value in scope["headers"] if name == b"x-api-key"), None)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
