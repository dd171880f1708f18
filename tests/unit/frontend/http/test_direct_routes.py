import asyncio
from typing import Any

import pytest

from atomesh.errors import AtomeshError, RateLimitError
from atomesh.frontend.http.direct_routes import DirectRoutes
from atomesh.observability.request_record import record_of


async def respond(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def inner(_scope: Any, _receive: Any, send: Any) -> None:
    await respond(send, 404)


def ask(endpoint: Any, method: str = "POST", path: str = "/here") -> tuple[list[int], dict[str, Any]]:
    """The statuses that were sent, and the scope; raises what comes out of it."""
    statuses: list[int] = []
    scope = {"type": "http", "method": method, "path": path, "headers": []}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    try:
        asyncio.run(DirectRoutes(inner, {"/here": endpoint})(scope, None, send))  # type: ignore[arg-type]
    except Exception as error:
        error.add_note(f"sent {statuses}")
        raise
    return statuses, scope


async def well(_scope: Any, _receive: Any, send: Any) -> None:
    await respond(send, 200)


def test_only_posts_to_its_paths_are_an_endpoint_s() -> None:
    assert ask(well)[0] == [200]
    assert ask(well, method="GET")[0] == [404]
    assert ask(well, path="/there")[0] == [404]


def test_our_own_error_is_answered_within_the_layers_around() -> None:
    async def full(_scope: Any, _receive: Any, _send: Any) -> None:
        raise RateLimitError("full")

    statuses, scope = ask(full)
    assert statuses == [429]
    assert record_of(scope).error_type == "rate_limit_exceeded"


def test_a_failure_of_ours_is_answered_and_goes_on_to_the_log() -> None:
    async def broken(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug") as caught:
        ask(broken)
    assert caught.value.__notes__ == ["sent [500]"]


@pytest.mark.parametrize("error", [RateLimitError("full"), ValueError("a bug")])
def test_after_the_start_an_error_only_goes_on(error: AtomeshError | ValueError) -> None:
    async def late(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise error

    with pytest.raises(type(error)) as caught:
        ask(late)
    assert caught.value.__notes__ == ["sent [200]"]
