"""Who may use the API, and who may use the admin routes. Keys are compared as digests, in constant time."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

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


class ApiKeyGuard:
    """ASGI layer: once there are keys, every path needs one of them as a Bearer token.

    But not `open_paths`, nor what begins with one of `open_prefixes`: who guards those does it by itself.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], open_paths: Iterable[str], open_prefixes: Iterable[str] = ()
    ) -> None:
        self._app = app
        self._ring = KeyRing(keys) if keys else None
        self._open_paths = frozenset(open_paths)
        self._open_prefixes = tuple(open_prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ring is not None and scope["type"] == "http" and not self._is_open(scope["path"]):
            self._check(self._ring, scope)
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_prefixes)

    def _check(self, ring: KeyRing, scope: Scope) -> None:
        token = bearer_token(scope)
        if token is None:
            raise AuthenticationError("no API key was given; send it as `Authorization: Bearer KEY`")
        if not ring.holds(token):
            raise AuthenticationError("the API key is not valid; check it, or ask the operator for one")


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


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
