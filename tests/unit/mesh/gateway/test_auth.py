import asyncio

import pytest
from starlette.types import Receive, Scope, Send

from atomesh.errors import AuthenticationError, PermissionDeniedError
from atomesh.mesh.gateway.auth import AdminGuard, ApiKeyGuard, KeyRing


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


def test_without_keys_everybody_comes_in() -> None:
    inner = Inner()
    call(ApiKeyGuard(inner, [], []), "/v1/models")
    assert inner.paths == ["/v1/models"]


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_each_key_opens(key: str) -> None:
    inner = Inner()
    guard = ApiKeyGuard(inner, ["first-key", "second-key"], ["/health"])
    call(guard, "/v1/models", bearer(key))
    call(guard, "/health")
    assert inner.paths == ["/v1/models", "/health"]


@pytest.mark.parametrize(
    "header",
    [
        (b"x-other", b"Bearer first-key"),
        (b"authorization", b"Basic first-key"),
        (b"authorization", b"first-key"),
        (b"authorization", b"Bearer"),
        (b"authorization", b"Bearer first-ke"),
        (b"authorization", b"Bearer first-keyy"),
        (b"authorization", b"Bearer \xff\xfe"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health/", "/HEALTH", "//health", "/tokenize"])
def test_nothing_else_does(header: tuple[bytes, bytes], path: str) -> None:
    inner = Inner()
    with pytest.raises(AuthenticationError):
        call(ApiKeyGuard(inner, ["first-key"], ["/health"]), path, header)
    assert inner.paths == []


def test_the_admin_route_wants_its_own_token() -> None:
    inner = Inner()
    guard = AdminGuard(inner, KeyRing(["token"]))
    with pytest.raises(AuthenticationError):
        call(guard, "/workers")
    with pytest.raises(PermissionDeniedError):
        call(guard, "/workers", bearer("first-key"))
    call(guard, "/workers", bearer("token"))
    assert inner.paths == ["/workers"]


def test_a_key_ring_keeps_no_key() -> None:
    ring = KeyRing(["the-key"])
    assert ring.holds(b"the-key")
    assert not ring.holds(b"")
    assert "the-key" not in repr(vars(ring))
