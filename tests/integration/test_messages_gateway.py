"""POST /v1/messages at the gateway: whose key, which name of a model, whose words a refusal has."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.testing.gateway_server import GatewayServer, Reply, gateway_server
from atomesh.testing.scripted_worker import BLOCK_SIZE, PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
KEY = "sk-tenant-a-0001"
TENANTS = f"""
[[tenant]]
name = "a"
key = "{KEY}"
"""
BILLING = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=%s;"


def before_gateway(
    tmp_path: Path, scenario: Callable[[GatewayServer], Awaitable[None]], *aliases: str, keys: bool = True
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    address = f"unix:{tmp_path}/0.sock"
    options = GatewayOptions(
        workers=(address,),
        secret=SECRET,
        admin_token="admin",
        access=AccessOptions(TenantOptions(file=path if keys else None)),
        model_aliases=aliases,
        drain_s=10.0,
    )

    async def main() -> None:
        tokens = PacedTokens()
        engine = scripted_engine(tokens)
        async with (
            asyncio.timeout(20.0),
            scripted_worker(engine, address, SECRET, incarnation="0" * 16),
            gateway_server(options) as server,
        ):
            await server.until(200)
            await scenario(server)

    asyncio.run(main())


async def message(server: GatewayServer, fields: dict[str, Any] | None = None, **headers: str) -> Reply:
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], **(fields or {})}
    return await server.ask("POST", "/v1/messages", body, **headers)


def test_either_header_shows_the_key(tmp_path: Path) -> None:
    async def scenario(server: GatewayServer) -> None:
        for headers in ({"x_api_key": KEY}, {"authorization": f"Bearer {KEY}"}):
            reply = await message(server, **headers)
            assert (reply.status, reply.body["type"]) == (200, "message")
            assert reply.headers["request-id"] == reply.headers["x-request-id"]

    before_gateway(tmp_path, scenario)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_who_has_no_key_hears_so_in_anthropic_s_words(tmp_path: Path, path: str) -> None:
    async def scenario(server: GatewayServer) -> None:
        for headers in ({}, {"x_api_key": "sk-wrong"}):
            reply = await server.ask("POST", path, {}, **headers)
            assert reply.status == 401
            assert reply.body["type"] == "error"
            assert reply.body["error"]["type"] == "authentication_error"
            assert reply.body["request_id"] == reply.headers["request-id"]

    before_gateway(tmp_path, scenario)


def test_an_alias_of_the_operator_s_is_a_model(tmp_path: Path) -> None:
    async def scenario(server: GatewayServer) -> None:
        listed = await server.ask("GET", "/v1/models", anthropic_version="2023-06-01")
        first, *others = [entry["id"] for entry in listed.body["data"]]
        assert others == ["claude-sonnet-4-5"]
        for name in (first, "claude-sonnet-4-5"):
            assert (await message(server, {"model": name})).body["model"] == first
        refused = await message(server, {"model": "claude-opus-4-5"})
        assert (refused.status, refused.body["error"]["type"]) == (404, "not_found_error")

    before_gateway(tmp_path, scenario, "claude-sonnet-4-5", keys=False)


def test_a_changing_billing_line_does_not_end_the_shared_prefix(tmp_path: Path) -> None:
    rules = "r" * 4 * BLOCK_SIZE

    async def scenario(server: GatewayServer) -> None:
        replies = [
            await message(server, {"system": f"{BILLING % cch}\n\n{rules}"}) for cch in ("eb6c6", "0aaa9")
        ]
        read = [reply.body["usage"]["cache_read_input_tokens"] for reply in replies]
        size = sum(replies[0].body["usage"][name] for name in ("input_tokens", "cache_read_input_tokens"))
        assert read == [0, (size - 1) // BLOCK_SIZE * BLOCK_SIZE]
        other = await message(server, {"system": f"No {BILLING % 'eb6c6'}\n\n{rules}"})
        assert other.body["usage"]["cache_read_input_tokens"] == 0

    before_gateway(tmp_path, scenario, keys=False)
