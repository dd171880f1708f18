"""FAULTS.md F1, F5, F7 and F8 at the gateway, over real HTTP and token planes: tenants, keys, salts, TLS."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from atomesh.mesh.admission.admission import QueueRules
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.testing.gateway_server import GatewayServer, Reply, gateway_server
from atomesh.testing.scripted_worker import BLOCK_SIZE, PacedTokens, scripted_engine, scripted_worker
from atomesh.testing.tls_files import make_tls_files

SECRET = b"s" * 32
ADMIN_TOKEN = "the-admin-token"
A, B = "sk-tenant-a-0001", "sk-tenant-b-0001"
PROMPT = list(range(1, 4 * BLOCK_SIZE + 2))  # four whole blocks and a token
TENANTS = f"""
[[tenant]]
name = "a"
key = "{A}"
may_explain = true
[[tenant]]
name = "b"
key = "{B}"
may_explain = true
"""


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0):
            await scenario()

    asyncio.run(main())


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def options(tmp_path: Path, access: AccessOptions, workers: int = 1) -> GatewayOptions:
    addresses = tuple(f"unix:{tmp_path}/{number}.sock" for number in range(workers))
    return GatewayOptions(
        workers=addresses, secret=SECRET, admin_token=ADMIN_TOKEN, access=access, drain_s=10.0
    )


@asynccontextmanager
async def serving(
    chosen: GatewayOptions, tokens: PacedTokens | None = None, max_num_seqs: int = 0
) -> AsyncIterator[GatewayServer]:
    """The gateway and all its workers, ready."""
    tokens = tokens or PacedTokens()
    async with AsyncExitStack() as stack:
        for number, address in enumerate(chosen.workers):
            engine = scripted_engine(tokens)
            worker = scripted_worker(
                engine, address, SECRET, incarnation=f"{number:016d}", max_num_seqs=max_num_seqs
            )
            await stack.enter_async_context(worker)
        stack.callback(tokens.release)  # else a test that fails leaves an engine that cannot stop
        server = await stack.enter_async_context(gateway_server(chosen))
        await server.until(200)
        yield server


async def complete(server: GatewayServer, key: str, **fields: Any) -> Reply:
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, **fields}
    return await server.ask("POST", "/v1/completions", body, authorization=f"Bearer {key}", x_explain="1")


async def cached(server: GatewayServer, key: str, **fields: Any) -> int:
    reply = await complete(server, key, **fields)
    assert reply.status == 200, reply.body
    count: int = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def best_match(reply: Reply) -> int:
    """The most that placement believed any worker to hold of the prompt."""
    [attempt] = reply.body["explain"]["requests"][0]["attempts"]
    return max(candidate["cached_tokens"] for candidate in attempt["candidates"])


def test_f1_a_tenant_does_not_hit_what_another_left(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        access = AccessOptions(TenantOptions(file=tenants))
        async with serving(options(tmp_path, access)) as server:
            whole = 4 * BLOCK_SIZE
            assert [await cached(server, key) for key in (A, A, B, B, A)] == [0, whole, 0, whole, whole]
            # A client's own salt sets more apart, never less.
            assert [await cached(server, A, cache_salt="own") for _ in range(2)] == [0, whole]
            assert await cached(server, B, cache_salt="own") == 0

    run(scenario)


def test_f1_a_tenant_is_not_drawn_to_what_another_left(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        access = AccessOptions(TenantOptions(file=tenants))
        async with serving(options(tmp_path, access, workers=2)) as server:
            found = [best_match(await complete(server, key)) for key in (A, A, B, B, A)]
            assert found == [0, 4 * BLOCK_SIZE, 0, 4 * BLOCK_SIZE, 4 * BLOCK_SIZE]

    run(scenario)


@pytest.mark.parametrize("access", ["no keys", "shared"])
def test_prefixes_are_everybodys_without_keys_and_where_the_operator_says_so(
    tmp_path: Path, tenants: Path, access: str
) -> None:
    async def scenario() -> None:
        file = tenants if access == "shared" else None
        chosen = AccessOptions(TenantOptions(file=file, share_prefixes=access == "shared"))
        async with serving(options(tmp_path, chosen)) as server:
            assert await cached(server, A) == 0
            assert await cached(server, B) == 4 * BLOCK_SIZE
            assert await cached(server, B, cache_salt="own") == 0

    run(scenario)


def test_f5_a_bad_request_costs_its_sender_alone(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        access = AccessOptions(TenantOptions(file=tenants))
        tokens = PacedTokens()
        async with serving(options(tmp_path, access), tokens) as server:
            tokens.pace()
            good = [asyncio.create_task(complete(server, A, prompt=[1, 2, number])) for number in range(3)]
            bad = [
                await complete(server, B, prompt=[1] * 600),
                await complete(server, B, model="none"),
                await complete(server, B, temperature=9),
                await server.ask("POST", "/v1/completions", None, authorization=f"Bearer {B}"),
            ]
            assert [reply.status for reply in bad] == [400, 404, 400, 415]
            tokens.release()
            assert [(await task).status for task in good] == [200] * 3
            assert (await complete(server, B)).status == 200

    run(scenario)


class Tap:
    """Lies between gateway and worker, and keeps every byte that the gateway sends."""

    def __init__(self, worker: str) -> None:
        self.sent = bytearray()
        self._worker = worker

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        worker_reader, worker_writer = await asyncio.open_unix_connection(self._worker)
        back = asyncio.create_task(_copy(worker_reader, writer))
        await _copy(reader, worker_writer, self.sent)
        await back


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None = None
) -> None:
    try:
        while data := await reader.read(65536):
            if kept is not None:
                kept += data
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


def test_f7_no_key_is_logged_or_forwarded_or_told(
    tmp_path: Path, tenants: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    flag_key, wrong = "sk-of-a-flag-0001", "sk-nobodys-key-01"
    told = bytearray()

    async def scenario() -> None:
        access = AccessOptions(TenantOptions(api_keys=(flag_key,), file=tenants))
        chosen = options(tmp_path, access)
        tap = Tap(f"{tmp_path}/worker.sock")
        listening = await asyncio.start_unix_server(tap.serve, chosen.workers[0].removeprefix("unix:"))
        async with (
            listening,
            scripted_worker(scripted_engine(PacedTokens()), f"unix:{tmp_path}/worker.sock", SECRET),
            gateway_server(chosen) as server,
        ):
            await server.until(200)
            for key in (A, B, flag_key):
                assert (await complete(server, key, user=key, cache_salt="own")).status == 200
                reply = await server.ask("POST", "/v1/completions", {"prompt": [1]}, x_api_key=key)
                assert reply.status == 200
                assert (await server.ask("GET", "/tenants", authorization=f"Bearer {key}")).status == 403
            refused = await complete(server, wrong)
            assert (refused.status, refused.body["error"]["code"]) == (401, "invalid_api_key")
            write(tenants, TENANTS + f'[[tenant]]\nname = "a"\nkey = "{wrong}"\n')
            await asyncio.sleep(1.5)  # a file that is wrong, and read again
            for path in ("/tenants", "/workers", "/debug/kv"):
                page = await server.ask("GET", path, authorization=f"Bearer {ADMIN_TOKEN}")
                told.extend(str(page.body).encode())
            async with server.http.get("/metrics") as metrics:
                told.extend(await metrics.read())
            told.extend(tap.sent + str(refused.body).encode())
        assert len(tap.sent) > 1000

    run(scenario)
    assert "the tenants stay as they were" in caplog.text
    output = "".join(capfd.readouterr())
    for key in (A, B, flag_key, wrong, ADMIN_TOKEN):
        assert key.encode() not in told
        assert key not in caplog.text + output
        assert key[:12] not in caplog.text + output


def test_a_changed_file_drops_no_request(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        async with serving(options(tmp_path, AccessOptions(TenantOptions(file=tenants))), tokens) as server:
            tokens.pace()
            tokens.allow(1)
            body = {"prompt": [1, 2, 3], "max_tokens": 20, "stream": True}
            key = {"authorization": f"Bearer {A}"}
            async with server.http.post("/v1/completions", json=body, headers=key) as stream:
                assert (await stream.content.readline()).startswith(b"data: ")
                write(tenants, TENANTS.replace(A, "sk-a-new-key-001"))
                async with asyncio.timeout(10.0):
                    while (await server.ask("GET", "/v1/models", **key)).status == 200:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                tokens.release()
                assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
            assert (await complete(server, A)).status == 401
            assert (await complete(server, "sk-a-new-key-001")).status == 200

    run(scenario)


def test_limits_are_answered_with_openais_headers(tmp_path: Path, tenants: Path) -> None:
    tenants.write_text(
        TENANTS.replace('name = "a"', 'name = "a"\nrequests_per_minute = 2\ntokens_per_minute = 9')
    )

    async def scenario() -> None:
        async with serving(options(tmp_path, AccessOptions(TenantOptions(file=tenants)))) as server:
            first = await complete(server, A, prompt=[1, 2, 3, 4])
            assert first.status == 200
            assert first.headers["x-ratelimit-remaining-requests"] == "1"
            assert first.headers["x-ratelimit-limit-tokens"] == "9"
            tokens = await complete(server, A, prompt=[1, 2, 3, 4])
            assert (tokens.status, tokens.body["error"]["code"]) == (429, "rate_limit_exceeded")
            assert "9 tokens per minute" in tokens.body["error"]["message"]
            assert 1 <= int(tokens.headers["retry-after"]) <= 60
            assert tokens.headers["x-ratelimit-remaining-tokens"] in "34"
            requests = await complete(server, A, prompt=[1])
            assert requests.status == 429
            assert "2 requests per minute" in requests.body["error"]["message"]
            assert requests.headers["x-ratelimit-remaining-requests"] == "0"
            assert requests.headers["x-request-id"]
            assert (await complete(server, B)).status == 200

    run(scenario)


def test_a_full_line_is_told_and_afterwards_all_is_well(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        access = AccessOptions(TenantOptions(file=tenants), QueueRules(max_requests=4))
        chosen, tokens = options(tmp_path, access), PacedTokens()
        async with serving(chosen, tokens, max_num_seqs=2) as server:
            tokens.pace()
            flood = [asyncio.create_task(complete(server, A, prompt=[1, 2, number])) for number in range(12)]
            async with asyncio.timeout(10.0):
                while sum(task.done() for task in flood) < 7:  # noqa: ASYNC110  one may run, four wait
                    await asyncio.sleep(0.01)
            refused = [task.result() for task in flood if task.done()]
            assert {reply.status for reply in refused} == {503}
            assert {reply.headers["retry-after"] for reply in refused} == {"1"}
            page = await server.ask("GET", "/tenants", authorization=f"Bearer {ADMIN_TOKEN}")
            counts = {one["name"]: (one["running"], one["waiting"]) for one in page.body["tenants"]}
            assert counts == {"a": (1, 4), "b": (0, 0)}
            other = asyncio.create_task(complete(server, B, prompt=[1, 2, 3]))
            async with asyncio.timeout(10.0):
                while counts["b"] == (0, 0):
                    page = await server.ask("GET", "/tenants", authorization=f"Bearer {ADMIN_TOKEN}")
                    counts = {one["name"]: (one["running"], one["waiting"]) for one in page.body["tenants"]}
            assert counts == {"a": (1, 3), "b": (1, 0)}  # b's came in for the last of the longest line
            tokens.release()
            assert (await other).status == 200
            replies = await asyncio.gather(*flood)
            assert sorted(reply.status for reply in replies) == [200] * 4 + [503] * 8
            async with server.http.get("/metrics") as metrics:
                text = await metrics.text()
            assert 'atomesh_queued_requests{model_name="scripted"} 0.0' in text
            for reason, count in (("queue_full", 7), ("pushed_out", 1)):
                labels = f'model_name="scripted",reason="{reason}"'
                assert f"atomesh_admission_refusals_total{{{labels}}} {count}.0" in text

    run(scenario)


def test_what_waits_beyond_its_deadline_is_a_504_and_beyond_the_longest_wait_a_503(
    tmp_path: Path, tenants: Path
) -> None:
    async def scenario() -> None:
        access = AccessOptions(TenantOptions(file=tenants), QueueRules(max_wait_s=0.5))
        tokens = PacedTokens()
        async with serving(options(tmp_path, access), tokens, max_num_seqs=1) as server:
            tokens.pace()
            running = asyncio.create_task(complete(server, A))
            await asyncio.sleep(0.1)
            key = {"authorization": f"Bearer {A}"}
            hasty = server.ask("POST", "/v1/completions", {"prompt": [1]}, x_request_timeout="0.2", **key)
            late, tired = await asyncio.gather(hasty, complete(server, B))
            assert (late.status, late.body["error"]["code"]) == (504, "deadline_exceeded")
            assert (tired.status, tired.headers["retry-after"]) == (503, "1")
            assert "no worker had room within 0.5 s" in tired.body["error"]["message"]
            tokens.release()
            assert (await running).status == 200

    run(scenario)


def test_those_who_wait_are_told_when_the_server_stops(tmp_path: Path, tenants: Path) -> None:
    async def scenario() -> None:
        tokens = PacedTokens()
        access = AccessOptions(TenantOptions(file=tenants))
        async with serving(options(tmp_path, access), tokens, max_num_seqs=1) as server:
            tokens.pace()
            running = asyncio.create_task(complete(server, A))
            await asyncio.sleep(0.1)
            waiting = asyncio.create_task(complete(server, A))
            await asyncio.sleep(0.1)
            server.gateway.stop()
            refused = await waiting
            assert (refused.status, "shutting down" in refused.body["error"]["message"]) == (503, True)
            tokens.release()
            assert (await running).status == 200

    run(scenario)


def test_tls_serves_https_and_nothing_older_than_1_2(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    chosen = replace(options(tmp_path, AccessOptions()), tls=files)
    trusted = ssl.create_default_context(cafile=str(files.certificate))

    async def scenario() -> None:
        worker = scripted_worker(scripted_engine(PacedTokens()), chosen.workers[0], SECRET)
        async with worker, gateway_server(chosen, trusted=trusted) as server:
            await server.until(200)
            assert (await complete(server, "")).status == 200
            body = {"prompt": [1, 2, 3], "max_tokens": 50, "stream": True}
            async with server.http.post("/v1/completions", json=body) as stream:
                assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
            old = ssl.create_default_context(cafile=str(files.certificate))
            with pytest.warns(DeprecationWarning, match="TLSv1"):
                old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(aiohttp.ClientConnectorError):
                await server.http.get("/live", ssl=old)
            url = server.http._base_url
            assert url is not None
            with pytest.raises(aiohttp.ClientError):
                await server.http.get(f"http://{url.host}:{url.port}/live")

    run(scenario)
