"""The OpenAPI document of a gateway with all its routes."""

import asyncio
from collections.abc import Mapping
from typing import Any

from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.testing.gateway_server import gateway_server


def gateway_document() -> Mapping[str, Any]:
    """As it is served, by one that waits for workers and takes faults."""

    async def ask() -> Any:
        options = GatewayOptions(workers=(), secret=b"s" * 32, admin_token="admin", enable_faults=True)  # noqa: S106
        async with gateway_server(options) as server:
            return (await server.ask("GET", "/openapi.json")).body

    document: Mapping[str, Any] = asyncio.run(ask())
    return document
