"""Responses at the gateway: whose they are, and what becomes of them when it goes and another comes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from atomesh.frontend.options import FrontendOptions
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.testing.gateway_server import GatewayServer, Reply, gateway_server
from atomesh.testing.scripted_worker import PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
A, B = "sk-key-a-0001", "sk-key-b-0001"
PATH = "/v1/responses"


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0):
            await scenario()

    asyncio.run(main())


@asynccontextmanager
async def serving(home: Path, tokens: PacedTokens) -> AsyncIterator[GatewayServer]:
    """A worker and a gateway, which keeps responses in a file; both of its keys may ask."""
    address = f"unix:{home}/w.sock"
    options = GatewayOptions(
        workers=(address,),
        secret=SECRET,
        admin_token="the-admin-token",
        access=AccessOptions(TenantOptions(api_keys=(A, B))),
        drain_s=10.0,
        frontend=FrontendOptions(response_store=home / "responses.db"),
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scripted_worker(scripted_engine(tokens), address, SECRET))
        stack.callback(tokens.release)
        server = await stack.enter_async_context(gateway_server(options))
        await server.until(200)
        yield server


async def ask(server: GatewayServer, method: str, path: str, body: Any = None, key: str = A) -> Reply:
    return await server.ask(method, path, body, authorization=f"Bearer {key}")


async def create(server: GatewayServer, **fields: Any) -> str:
    body = {"input": "hi", "max_output_tokens": 3, "temperature": 0, **fields}
    reply = await ask(server, "POST", PATH, body)
    assert reply.status == 200, reply.body
    response_id: str = reply.body["id"]
    return response_id


def test_a_response_is_its_key_s_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, PacedTokens()) as server:
            response_id = await create(server)
            place = f"{PATH}/{response_id}"
            for method, path in (
                ("GET", place),
                ("GET", f"{place}/input_items"),
                ("POST", f"{place}/cancel"),
                ("DELETE", place),
            ):
                assert (await ask(server, method, path, key=B)).status == 404
            followed = await ask(server, "POST", PATH, {"input": "x", "previous_response_id": response_id}, B)
            assert (followed.status, followed.body["error"]["code"]) == (400, "previous_response_not_found")
            assert (await ask(server, "GET", place)).body["id"] == response_id
            assert (await ask(server, "GET", f"{place}/input_items")).body["data"][0]["role"] == "user"
            assert (await server.ask("GET", place)).status == 401

    run(scenario)


def test_a_running_background_response_is_its_key_s_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        tokens.pace()
        async with serving(tmp_path, tokens) as server:
            place = f"{PATH}/{await create(server, background=True)}"
            for method, path in (
                ("GET", place),
                ("GET", f"{place}?stream=true"),
                ("POST", f"{place}/cancel"),
            ):
                assert (await ask(server, method, path, key=B)).status == 404
            assert (await ask(server, "GET", place)).body["status"] == "queued"
            tokens.release()

    run(scenario)


def test_a_conversation_goes_on_at_the_next_gateway(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, PacedTokens()) as server:
            first = await create(server)
        async with serving(tmp_path, PacedTokens()) as server:
            second = await create(server, previous_response_id=first, input="more")
            items = (await ask(server, "GET", f"{PATH}/{second}/input_items?order=asc")).body["data"]
            assert [item["role"] for item in items] == ["user", "assistant", "user"]

    run(scenario)


@pytest.mark.parametrize("waits", [True, False])
def test_a_leaving_gateway_waits_for_background_responses_unless_told_to_go(
    tmp_path: Path, waits: bool
) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        tokens.pace()
        async with serving(tmp_path, tokens) as server:
            response_id = await create(server, background=True)
            server.gateway.stop()
            if waits:
                tokens.allow(3)
            else:
                server.gateway.stop()
            await asyncio.wait((server.task,))
        async with serving(tmp_path, PacedTokens()) as server:
            kept = (await ask(server, "GET", f"{PATH}/{response_id}")).body
            assert kept["status"] == ("incomplete" if waits else "failed")
            assert (kept["error"] is None) == waits

    run(scenario)
