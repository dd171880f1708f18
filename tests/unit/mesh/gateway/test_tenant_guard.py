import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.middleware import Middleware
from starlette.types import Message, Receive, Scope, Send

from atomesh.errors import AuthenticationError, NotFoundError
from atomesh.frontend.app import create_app
from atomesh.frontend.context import SEEN_MODELS
from atomesh.frontend.openai.call import POLICY_HEADER
from atomesh.frontend.served_model import ServedModel
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.gateway.limits import format_duration
from atomesh.mesh.gateway.tenant_guard import TenantGuard
from atomesh.mesh.gateway.tenants import KeyedTenant, TenantDirectory, digest_of, tenants_of_keys
from atomesh.testing.app_server import serve_app
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_worker import MODEL
from atomesh.testing.raw_http import send
from atomesh.testing.scripted_service import ScriptedService

Header = tuple[bytes, bytes]


def keyed(key: str, **fields: Any) -> KeyedTenant:
    return KeyedTenant(Tenant(name=f"tenant-of-{key}", **fields), (digest_of(key.encode()),))


class Inner:
    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Door:
    def __init__(
        self, *tenants: KeyedTenant, needs_key: bool = True, models: Sequence[ServedModel] = ()
    ) -> None:
        self.clock = ManualClock(100.0)
        self.inner = Inner()
        self.sent: list[Message] = []
        directory = TenantDirectory(tenants, self.clock, needs_key=needs_key)
        self.guard = TenantGuard(self.inner, directory, lambda: models, self.clock, ["/health"], ["/debug/"])

    def knock(self, path: str, *headers: Header, method: str = "GET") -> None:
        scope: Scope = {"type": "http", "path": path, "method": method, "headers": list(headers)}

        async def send(message: Message) -> None:
            self.sent.append(message)

        asyncio.run(self.guard(scope, None, send))  # type: ignore[arg-type]

    @property
    def paths(self) -> list[str]:
        return [scope["path"] for scope in self.inner.scopes]

    @property
    def head(self) -> tuple[int, dict[str, str]]:
        """Of the last answer."""
        start = [message for message in self.sent if message["type"] == "http.response.start"][-1]
        return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


def bearer(key: str) -> Header:
    return (b"authorization", b"Bearer " + key.encode())


def model(name: str, *aliases: str) -> ServedModel:
    return ServedModel(name, ByteTokenizer(), None, ScriptedService(replace(MODEL, name=name)), 0, aliases)


def test_without_keys_everybody_comes_in() -> None:
    door = Door(needs_key=False)
    door.knock("/v1/models")
    assert door.paths == ["/v1/models"]


@pytest.mark.parametrize(("models", "statuses"), [((), [503, 503, 503]), (("big",), [200, 404, 404])])
def test_whose_models_nobody_serves_hears_no_503_from_a_server_that_is_ready(
    models: Sequence[str], statuses: list[int]
) -> None:
    clock = ManualClock()
    tenants = TenantDirectory([keyed("a-key", models=frozenset({"nosuch"}))], clock, needs_key=True)
    served = [model(name) for name in models]
    layer = Middleware(TenantGuard, tenants, lambda: served, clock, ())
    with serve_app(create_app(lambda: served, middleware=[layer])) as server:
        answers = [
            send(server.url, method, path, body, headers={"authorization": "Bearer a-key"})
            for method, path, body in (
                ("GET", "/v1/models", None),
                ("GET", "/v1/models/nosuch", None),
                ("POST", "/v1/completions", {"model": "nosuch", "prompt": "x"}),
            )
        ]
        assert [answer.status for answer in answers] == statuses
        if models:
            assert answers[0].json() == {"object": "list", "data": []}
            assert answers[2].json()["error"]["code"] == "model_not_found"
            assert "big" not in answers[2].json()["error"]["message"]


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_each_key_opens(key: str) -> None:
    door = Door(keyed("first-key"), keyed("second-key"))
    door.knock("/v1/models", bearer(key))
    door.knock("/v1/models", (b"x-api-key", key.encode()))
    door.knock("/health")
    door.knock("/debug/kv")
    assert door.paths == ["/v1/models", "/v1/models", "/health", "/debug/kv"]


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
        (b"x-api-key", b"first-ke"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/health/", "/HEALTH", "//health", "/tokenize"])
def test_nothing_else_does(header: Header, path: str) -> None:
    door = Door(keyed("first-key"))
    with pytest.raises(AuthenticationError) as refused:
        door.knock(path, header)
    assert "first-ke" not in refused.value.message
    assert door.paths == []


def test_where_keys_are_needed_and_there_are_none_nobody_comes_in() -> None:
    door = Door()
    with pytest.raises(AuthenticationError):
        door.knock("/v1/models", bearer("first-key"))


def test_a_caller_sees_its_models_and_no_others() -> None:
    models = [model("big", "large"), model("small")]
    door = Door(keyed("all-keys"), keyed("small-key", models=frozenset({"small"})), models=models)
    door.knock("/v1/models", bearer("small-key"))
    door.knock("/v1/models", bearer("all-keys"))
    seen = [[one.name for one in scope[SEEN_MODELS]()] for scope in door.inner.scopes]
    assert seen == [["small"], ["big", "small"]]


def test_behind_the_door_a_model_of_others_does_not_exist() -> None:
    clock = ManualClock()
    tenants = TenantDirectory([keyed("small-key", models=frozenset({"small"}))], clock, needs_key=True)
    models = [model("big"), model("small")]
    layer = Middleware(TenantGuard, tenants, lambda: models, clock, ())
    with serve_app(create_app(lambda: models, middleware=[layer])) as server:
        key = {"authorization": "Bearer small-key"}
        listed = send(server.url, "GET", "/v1/models", headers=key).json()
        assert [one["id"] for one in listed["data"]] == ["small"]
        for method, path, body in (
            ("GET", "/v1/models/big", None),
            ("POST", "/v1/completions", {"model": "big", "prompt": "x"}),
            (
                "POST",
                "/v1/chat/completions",
                {"model": "big", "messages": [{"role": "user", "content": "x"}]},
            ),
            ("POST", "/tokenize", {"model": "big", "prompt": "x"}),
            ("POST", "/detokenize", {"model": "big", "tokens": [1]}),
        ):
            response = send(server.url, method, path, body, key)
            assert (response.status, response.error["code"]) == (404, "model_not_found"), path
            assert "this server has small" in response.error["message"]
        unnamed = send(server.url, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 1}, key)
        assert unnamed.json()["model"] == "small"


@pytest.mark.parametrize(
    ("header", "flag"), [("x-explain", "may_explain"), (POLICY_HEADER, "may_choose_policy")]
)
def test_some_headers_want_leave(header: str, flag: str) -> None:
    door = Door(keyed("yes-key", **{flag: True}), keyed("no-key", **{flag: False}))
    door.knock("/v1/models", bearer("yes-key"), (header.encode(), b"1"))
    door.knock("/v1/models", bearer("no-key"))
    door.knock("/v1/models", bearer("no-key"), (header.encode(), b"1"))
    assert door.head[0] == 403
    assert header.encode() in door.sent[-1]["body"]
    assert len(door.paths) == 2


def test_limits_are_told_on_every_answer() -> None:
    door = Door(keyed("a-key", requests_per_minute=60, tokens_per_minute=600), keyed("b-key"))
    door.knock("/v1/completions", bearer("a-key"), method="POST")
    assert door.head == (
        200,
        {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "600",
            "x-ratelimit-remaining-tokens": "600",
            "x-ratelimit-reset-tokens": "0ms",
        },
    )
    door.knock("/v1/completions", bearer("b-key"), method="POST")
    assert door.head == (200, {})


@pytest.mark.parametrize(
    ("status", "header"),
    [(403, (b"x-explain", b"1")), (400, (b"x-request-timeout", b"nan")), (404, (b"x", b""))],
)
def test_limits_are_told_with_every_error_at_the_door_and_behind_it(status: int, header: Header) -> None:
    async def lost(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise NotFoundError("there is no such model")

    door = Door(keyed("a-key", requests_per_minute=60, may_explain=False))
    door.guard._app = lost
    door.knock("/v1/completions", bearer("a-key"), header, method="POST")

    assert door.head[0] == status
    assert door.head[1]["x-ratelimit-limit-requests"] == "60"
    assert door.head[1]["x-ratelimit-remaining-requests"] == ("59" if status == 404 else "60")


def test_beyond_its_limit_a_key_is_told_when_to_come_back() -> None:
    door = Door(keyed("a-key", requests_per_minute=2), keyed("b-key", requests_per_minute=2))
    for _ in range(2):
        door.knock("/v1/completions", bearer("a-key"), method="POST")
    door.knock("/v1/completions", bearer("a-key"), method="POST")
    status, headers = door.head
    assert (status, headers["retry-after"], headers["x-ratelimit-remaining-requests"]) == (429, "30", "0")
    assert b'"code":"rate_limit_exceeded"' in door.sent[-1]["body"]
    door.knock("/v1/models", bearer("a-key"))
    assert door.head[0] == 200  # what cannot generate is not counted
    door.knock("/v1/completions", bearer("b-key"), method="POST")
    assert door.head[0] == 200
    door.clock.advance(30.0)
    door.knock("/v1/completions", bearer("a-key"), method="POST")
    assert door.head[0] == 200


def test_a_bad_timeout_counts_against_nothing() -> None:
    door = Door(keyed("a-key", requests_per_minute=1))
    door.knock("/v1/completions", bearer("a-key"), (b"x-request-timeout", b"never"), method="POST")
    assert door.head[0] == 400
    assert b"x-request-timeout" in door.sent[-1]["body"]
    door.knock("/v1/completions", bearer("a-key"), method="POST")
    assert door.head[0] == 200


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0ms"),
        (0.12, "120ms"),
        (0.9999, "1s"),
        (1.5, "1.5s"),
        (59.9996, "1m0s"),
        (360.0, "6m0s"),
        (61.25, "1m1.25s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_names_made_of_keys_tell_nothing_and_are_the_same_everywhere() -> None:
    one, two = tenants_of_keys(["first-key", "second-key"], b"secret")
    assert tenants_of_keys(["second-key"], b"secret")[0].tenant == two.tenant
    assert one.tenant.name != two.tenant.name
    assert "first" not in one.tenant.name
    assert tenants_of_keys(["first-key"], b"other")[0].tenant != one.tenant
