"""A gateway with one good member and one that says what it must not: the good one is served on."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.errors import ModelFileError
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.gateway_server import GatewayServer, byte_text, gateway_server
from atomesh.testing.puppet_worker import PuppetWorker, serving

SECRET = b"s" * 32
ADMIN = "Bearer the-admin-token"


def options(*workers: str) -> GatewayOptions:
    return GatewayOptions(workers=workers, secret=SECRET, admin_token="the-admin-token")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


async def listed(gateway: GatewayServer, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """GET /workers by address, once it is so."""
    async with asyncio.timeout(10.0):
        while True:
            workers = (await gateway.ask("GET", "/workers", authorization=ADMIN)).body["workers"]
            by_address = {worker["address"]: worker for worker in workers}
            if condition(by_address):
                return by_address
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ModelFileError("there is no such model"), "there is no such model"),
        (RecursionError("too deep"), "RecursionError: too deep"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_not_offered_before_another_hello(
    tmp_path: Path, error: Exception, why: str
) -> None:
    troubles = [error]

    def load(model: ModelDescription) -> TextSide:
        if model.name == "elsewhere" and troubles:
            raise troubles.pop()
        return byte_text(model)

    async def scenario() -> None:
        good, bad = (f"unix:{tmp_path}/{name}" for name in ("good", "bad"))
        theirs = PuppetWorker("unified", SECRET)
        theirs.description = replace(
            theirs.description, worker_id="bad", model=replace(theirs.description.model, name="elsewhere")
        )
        async with serving(theirs, bad), gateway_server(options(bad, good), load) as gateway:
            await listed(gateway, lambda workers: workers[bad]["not_offered"] == why)
            assert (await gateway.ask("GET", "/ready")).status == 503
            async with serving(PuppetWorker("unified", SECRET), good):
                await gateway.until(200)
                models = (await gateway.ask("GET", "/v1/models")).body["data"]
                assert [model["id"] for model in models] == ["scripted"]
                theirs.hang_up()
                await listed(gateway, lambda workers: workers[bad]["not_offered"] is None)
                models = (await gateway.ask("GET", "/v1/models")).body["data"]
                assert [model["id"] for model in models] == ["scripted", "elsewhere"]

    run(scenario)
