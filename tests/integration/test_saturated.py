"""While the engine is in a step that does not end and its queue is full, the status routes answer at once."""

import asyncio
from pathlib import Path

from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.testing.gateway_server import GatewayServer, gateway_server
from atomesh.testing.scripted_worker import PacedTokens, scripted_engine, scripted_worker

SECRET = b"s" * 32
SEATS, ASKED = 64, 80  # of the scripted engine, and of us
PATIENCE_S = 2.0  # for one answer; the step would take for ever
STATUS_ROUTES = ("/live", "/ready", "/health", "/ping", "/v1/models")
BODY = {"model": "scripted", "prompt": [1], "max_tokens": 12, "stream": True}


async def saturate(server: GatewayServer, tokens: PacedTokens) -> None:
    """A token at a time, until the load shows; what is allowed then ends in the middle of a step."""
    async with asyncio.timeout(20.0):
        while (await server.ask("GET", "/load")).body["server_load"] < ASKED:
            tokens.allow(1)
            await asyncio.sleep(0.002)


async def check_status_routes(server: GatewayServer) -> None:
    for path in STATUS_ROUTES:
        async with asyncio.timeout(PATIENCE_S):
            assert (await server.ask("GET", path)).status == 200
    async with asyncio.timeout(PATIENCE_S):
        load, version = await server.ask("GET", "/load"), await server.ask("GET", "/version")
    assert load.body == {"server_load": ASKED, "running": SEATS, "waiting": ASKED - SEATS}
    assert list(version.body) == ["version"]


def test_status_routes_answer_while_the_engine_is_saturated(tmp_path: Path) -> None:
    async def scenario() -> None:
        address, tokens = f"unix:{tmp_path}/w.sock", PacedTokens()
        options = GatewayOptions(workers=(address,), secret=SECRET, admin_token="admin")
        async with (
            scripted_worker(scripted_engine(tokens), address, SECRET),
            gateway_server(options) as server,
        ):
            await server.until(200)
            tokens.pace()
            asking = [
                asyncio.create_task(server.http.post("/v1/completions", json=BODY)) for _ in range(ASKED)
            ]
            try:
                await saturate(server, tokens)
                await check_status_routes(server)
            finally:
                tokens.release()
            answers = await asyncio.gather(*asking)
            texts = [await answer.text() for answer in answers]
            assert {answer.status for answer in answers} == {200}
            assert all(text.endswith("data: [DONE]\n\n") for text in texts)

    async def main() -> None:
        async with asyncio.timeout(60.0):
            await scenario()

    asyncio.run(main())
