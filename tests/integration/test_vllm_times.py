"""Where a request's time went in vLLM, as the client reads it: of one server, and of a pair."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from atomesh.mesh.backends.context import LocalModel
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.protocol.worker import Role
from atomesh.testing.backend_bench import MODEL
from atomesh.testing.fake_vllm_server import FakeVllmServer
from atomesh.testing.gateway_server import gateway_server

ROLES: dict[str, tuple[Role, ...]] = {"unified": ("unified",), "pair": ("prefill", "decode")}


async def timing_of(roles: tuple[Role, ...], max_tokens: int) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeVllmServer(MODEL)) for _ in roles]
        specs = [BackendSpec(server.url, "vllm", role) for server, role in zip(servers, roles, strict=True)]
        options = GatewayOptions(
            workers=(),
            secret=b"s" * 32,
            admin_token="admin",
            engines=tuple(specs),
            find_model=lambda name: LocalModel(name, "/models/x", "LlamaForCausalLM", 1000, (2,)),
        )
        gateway = await stack.enter_async_context(gateway_server(options))
        body = {"model": MODEL, "prompt": [5, 6], "max_tokens": max_tokens}
        async with asyncio.timeout(10.0):
            while (reply := await gateway.ask("POST", "/v1/completions", body)).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        parts = (part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
        return {name: float(milliseconds) for name, milliseconds in parts}


@pytest.mark.parametrize(
    ("shape", "transfer_ms"), [("unified", 0.0), ("pair", 250.0)]
)  # decode's turn comes when its KV is there
@pytest.mark.parametrize("max_tokens", [3, 8])
def test_vllm_s_own_times_are_told(shape: str, transfer_ms: float, max_tokens: int) -> None:
    timing = asyncio.run(timing_of(ROLES[shape], max_tokens))

    assert timing["queue"] == pytest.approx(250.0, abs=20.0)  # with the gateway's own wait
    assert (timing["prefill"], timing["transfer"]) == (500.0, transfer_ms)
    assert "decode" in timing
