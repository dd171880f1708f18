import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from atomesh.errors import AuthenticationError, PermissionDeniedError
from atomesh.mesh.gateway.auth import AdminGuard, KeyRing, api_key


class Inner:
    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.paths.append(scope["path"])


def call(app: object, path: str, *headers: tuple[bytes, bytes]) -> None:
    scope = {"type": "http", "path": path, "headers": list(headers)}
    asyncio.run(app(scope, None, None))  # type: ignore[operator]


def bearer(key: str) -> tuple[bytes, bytes]:
    return (b"authorization", b"Bearer " + key.encode())


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer k")], b"k"),
        ([(b"authorization", b"bearer  k ")], b"k"),
        ([(b"x-api-key", b" k ")], b"k"),
        ([(b"x-api-key", b"a"), (b"authorization", b"Bearer b")], b"b"),
        ([(b"authorization", b"Basic b"), (b"x-api-key", b"a")], b"a"),
        ([(b"authorization", b"k")], None),
        ([(b"authorization", b"Basic k")], None),
        ([(b"x-other", b"Bearer k")], None),
        ([], None),
    ],
)
def test_a_key_comes_as_a_bearer_token_or_in_its_own_header(
    headers: list[tuple[bytes, bytes]], key: bytes | None
) -> None:
    assert api_key({"type": "http", "headers": headers}) == key


def test_the_admin_route_wants_its_own_token() -> None:
    inner = Inner()
    guard = AdminGuard(inner, KeyRing(["token"]))
    with pytest.raises(AuthenticationError):
        call(guard, "/workers")
    with pytest.raises(PermissionDeniedError):
        call(guard, "/workers", bearer("first-key"))
    with pytest.raises(AuthenticationError):
        call(guard, "/workers", (b"x-api-key", b"token"))
    call(guard, "/workers", bearer("token"))
    assert inner.paths == ["/workers"]


def test_a_key_ring_keeps_no_key() -> None:
    ring = KeyRing(["the-key"])
    assert ring.holds(b"the-key")
    assert not ring.holds(b"")
    assert "the-key" not in repr(vars(ring))
