"""Servers of text as members of the mesh: who is let in, who is asked, who is trusted, who may go."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from atomesh.mesh.admission.admission import QueueRules
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.gateway.observability import Observability
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.mesh.placement.policies.rules import parse_policies
from atomesh.testing.fake_openai_server import (
    HOLD,
    FakeOpenAIServer,
    Script,
    refusal,
    text_answer,
    text_frame,
)
from atomesh.testing.gateway_server import GatewayServer, Reply, gateway_server

ADMIN = "Bearer admin"
WHOLE = Script(
    [b'{"id":"x","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'],
    content_type="application/json",
)
HELD = Script([HOLD, *WHOLE.steps], content_type="application/json")
PROMPT = {"prompt": "x" * 398}  # 100 tokens by its bytes
Test = Callable[[GatewayServer, list[FakeOpenAIServer]], Awaitable[None]]


def before(test: Test, *scripts: Script, slots: int = 1024, servers: int = 1, **others: Any) -> None:
    """Runs `test` on a gateway before as many servers, all of which play `scripts`."""

    async def whole() -> None:
        doubles = [FakeOpenAIServer(*scripts) for _ in range(servers)]
        for double in doubles:
            await double.__aenter__()
        specs = tuple(BackendSpec(one.url, "openai", slots=slots) for one in doubles)
        options = GatewayOptions(workers=(), secret=b"s" * 32, admin_token="admin", engines=specs, **others)
        async with gateway_server(options) as gateway:
            try:
                await _until(lambda: _count(gateway, "ready"), servers)
                await test(gateway, doubles)
            finally:
                for double in doubles:
                    await double.__aexit__()

    asyncio.run(whole())


async def _count(gateway: GatewayServer, state: str) -> int:
    return sum(worker["state"] == state for worker in await workers(gateway))


async def _until(read: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    async with asyncio.timeout(10):
        while await read() != wanted:  # noqa: ASYNC110  as an operator would
            await asyncio.sleep(0.01)


async def workers(gateway: GatewayServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.ask("GET", "/workers", authorization=ADMIN)).body["workers"]
    return found


async def metric(gateway: GatewayServer, start: str) -> float:
    """The sum of the samples that begin so."""
    async with gateway.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def ask(gateway: GatewayServer, **headers: str) -> "asyncio.Task[Reply]":
    return asyncio.create_task(gateway.ask("POST", "/v1/completions", PROMPT, **headers))


def test_no_server_has_more_than_its_slots_and_the_line_is_bounded() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        running = [ask(gateway) for _ in range(2)]
        await _until(lambda: metric(gateway, "atomesh_relayed_requests_running"), 2)
        waiting = ask(gateway)
        await _until(lambda: metric(gateway, "atomesh_queued_requests"), 1)
        refused = await ask(gateway)

        assert [len(one.bodies) for one in servers] == [1, 1]
        assert (refused.status, refused.body["error"]["type"]) == (503, "service_unavailable_error")
        assert 1 <= int(refused.headers["retry-after"]) <= 120

        for server in servers:
            server.release()
        assert [(await one).status for one in (*running, waiting)] == [200] * 3
        assert sum(len(one.bodies) for one in servers) == 3

    queue = AccessOptions(queue=QueueRules(max_requests=1))
    before(test, HELD, slots=1, servers=2, access=queue)


def test_a_deadline_passes_in_line_too() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        running = ask(gateway)
        await _until(lambda: metric(gateway, "atomesh_relayed_requests_running"), 1)
        late = await ask(gateway, x_request_timeout="0.2")

        assert (late.status, late.body["error"]["type"]) == (504, "deadline_exceeded")
        assert len(servers[0].bodies) == 1
        servers[0].release()
        assert (await running).status == 200

    before(test, HELD, slots=1)


@pytest.mark.parametrize(
    ("script", "took"),
    [
        (WHOLE, 5),
        (text_answer(["a", "b"], prompt=7), 9),
        (Script([text_frame("a"), text_frame("b"), b"data: [DONE]\n\n"]), 102),
    ],
    ids=["whole", "stream with usage", "stream without"],
)
def test_tokens_are_charged_by_a_guess_and_then_as_the_answer_says(
    tmp_path: Any, script: Script, took: int
) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenant]]\nname = "t"\nkey = "the-tenants-key"\ntokens_per_minute = 600\n')
    access = AccessOptions(TenantOptions(file=file))

    async def test(gateway: GatewayServer, _servers: list[FakeOpenAIServer]) -> None:
        async with gateway.http.post(
            "/v1/completions", json=PROMPT, headers={"authorization": "Bearer the-tenants-key"}
        ) as response:
            guessed = int(response.headers["x-ratelimit-remaining-tokens"])
            await response.read()
        after = await gateway.ask("GET", "/v1/models", authorization="Bearer the-tenants-key")

        assert 500 <= guessed <= 503
        assert 600 - took <= int(after.headers["x-ratelimit-remaining-tokens"]) <= min(600 - took + 5, 600)

    before(test, script, access=access)


def test_a_tenant_that_has_used_up_its_tokens_is_told_when_to_come_back(tmp_path: Any) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenant]]\nname = "t"\nkey = "the-tenants-key"\ntokens_per_minute = 110\n')

    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        first = await ask(gateway, authorization="Bearer the-tenants-key")
        second = await ask(gateway, authorization="Bearer the-tenants-key")

        assert (first.status, second.status) == (200, 429)
        assert second.body["error"]["type"] == "rate_limit_exceeded"
        assert int(second.headers["retry-after"]) >= 1
        assert len(servers[0].bodies) == 1

    usage = b'{"usage":{"prompt_tokens":100,"completion_tokens":100}}'
    answer = Script([usage], content_type="application/json")
    before(test, answer, access=AccessOptions(TenantOptions(file=file)))


def test_what_one_server_refuses_another_is_asked() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        replies = [await ask(gateway) for _ in range(2)]

        assert [reply.status for reply in replies] == [200, 200]
        assert sorted(len(one.bodies) for one in servers) == [1, 2]
        assert await metric(gateway, "atomesh_retries_total") == 1
        assert await metric(gateway, "atomesh_relayed_requests_total") == 3

    async def refusing_first(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        servers[0]._scripts = (refusal(503, "busy"), WHOLE)
        await test(gateway, servers)

    before(refusing_first, WHOLE, servers=2)


def test_a_client_with_some_of_its_answer_gets_no_other() -> None:
    broken = Script([text_frame("a")])  # ends without its end

    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        async with gateway.http.post("/v1/completions", json={"prompt": "x", "stream": True}) as response:
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
        assert sum(len(one.bodies) for one in servers) == 1
        assert await metric(gateway, "atomesh_cut_streams_total") == 1

    before(test, broken, servers=2)


def test_a_server_that_fails_again_and_again_is_left_alone_and_probed() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        failed = [await ask(gateway) for _ in range(5)]
        left_alone = await ask(gateway)
        [worker] = await workers(gateway)

        assert [reply.status for reply in failed] == [500] * 5
        assert (left_alone.status, left_alone.headers["retry-after"]) == (503, "2")
        assert worker["breaker"]["state"] == "open"
        assert await metric(gateway, "atomesh_relay_breaker_open") == 1
        assert len(servers[0].bodies) == 5

        await _until(lambda: _breaker(gateway), "half-open")
        assert (await ask(gateway)).status == 200
        assert await _breaker(gateway) == "closed"

    before(test, *[refusal(500, "no")] * 5, WHOLE)


async def _breaker(gateway: GatewayServer) -> str:
    [worker] = await workers(gateway)
    state: str = worker["breaker"]["state"]
    return state


def test_servers_are_shown_and_drained_like_all_workers() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        running = ask(gateway)
        await _until(lambda: metric(gateway, "atomesh_relayed_requests_running"), 1)
        [worker] = await workers(gateway)
        shown = {name: worker[name] for name in ("id", "kind", "model", "models", "state", "in_flight")}
        assert shown == {
            "id": servers[0].url,
            "kind": "openai",
            "model": "fake-model",
            "models": ["fake-model"],
            "state": "ready",
            "in_flight": 1,
        }

        path = f"/workers/{servers[0].url}"
        assert (await gateway.ask("DELETE", f"{path}?drain=true", authorization=ADMIN)).status == 200
        assert await _count(gateway, "draining") == 1
        assert (await ask(gateway)).status == 503
        servers[0].release()
        assert (await running).status == 200
        assert await workers(gateway) == []

    before(test, HELD)


def test_what_is_removed_at_once_is_asked_of_another() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        running = ask(gateway)
        await _until(lambda: metric(gateway, "atomesh_relayed_requests_running"), 1)
        [busy] = [one for one in servers if one.bodies]
        [other] = [one for one in servers if not one.bodies]
        other.release()
        await gateway.ask("DELETE", f"/workers/{busy.url}", authorization=ADMIN)

        assert (await running).status == 200
        assert len(other.bodies) == 1

    before(test, HELD, servers=2)


def test_a_gateway_that_stops_ends_streams_with_an_error_frame() -> None:
    async def test(gateway: GatewayServer, _servers: list[FakeOpenAIServer]) -> None:
        async with gateway.http.post("/v1/completions", json={"prompt": "x", "stream": True}) as response:
            received = await response.content.readany()
            gateway.gateway.stop()
            with suppress(aiohttp.ClientPayloadError):
                while chunk := await response.content.readany():
                    received += chunk

        good = text_frame("a")
        assert received.startswith(good + b"event: error\ndata: ")
        assert json.loads(received[len(good) :].split(b"data: ")[1])["error"]["code"] == 503

    before(test, Script([text_frame("a"), HOLD]), drain_s=0.05)


@pytest.mark.parametrize("policy", ["prefix_hash", "cache_aware", "session", "kv_aware"])
def test_policies_with_affinity_go_by_the_text(policy: str) -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        for turn in range(4):
            body = {"prompt": "begin " * 400 + f"turn {turn}", "prompt_cache_key": "mine"}
            assert (await gateway.ask("POST", "/v1/completions", body)).status == 200
        assert sorted(len(one.bodies) for one in servers) == [0, 4]

    before(test, WHOLE, servers=2, rules=DispatchRules(policies=parse_policies([policy])))


def test_without_a_policy_the_least_busy_are_asked_in_turn() -> None:
    async def test(gateway: GatewayServer, servers: list[FakeOpenAIServer]) -> None:
        for _ in range(6):
            assert (await ask(gateway)).status == 200
        assert [len(one.bodies) for one in servers] == [3, 3]

    before(test, WHOLE, servers=2)


def test_a_request_has_its_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(gateway: GatewayServer, _servers: list[FakeOpenAIServer]) -> None:
        await ask(gateway, x_request_id="mine")
        response = await gateway.http.post("/v1/completions", json={"prompt": "x", "stream": True})
        await response.content.readany()
        response.close()
        await _until(lambda: metric(gateway, "atomesh_client_disconnects_total"), 1)

    body = b'{"choices":[{"finish_reason":"length"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}'
    answers = (Script([body], content_type="application/json"), Script([text_frame("a"), HOLD]))
    before(test, *answers, observability=Observability(logs_requests=True))

    whole, left = [vars(line) for line in caplog.records if line.message == "POST /v1/completions"]
    assert (whole["request_id"], whole["outcome"], whole["model"]) == ("mine", "ok", "fake-model")
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (7, 2)
    assert whole["finish_reasons"] == ["length"]
    assert (left["outcome"], left["completion_tokens"]) == ("aborted", 1)


def test_counts_go_into_the_models_metrics() -> None:
    async def test(gateway: GatewayServer, _servers: list[FakeOpenAIServer]) -> None:
        await ask(gateway)

        label = '{engine="0",model_name="fake-model"}'
        assert await metric(gateway, f"vllm:prompt_tokens_total{label}") == 3
        assert await metric(gateway, f"vllm:generation_tokens_total{label}") == 2
        assert await metric(gateway, f"vllm:e2e_request_latency_seconds_count{label}") == 1
        assert await metric(gateway, f"vllm:time_to_first_token_seconds_count{label}") == 1

    before(test, WHOLE)


def test_a_route_that_a_server_lacks_is_a_404_and_no_fault_of_its() -> None:
    async def test(gateway: GatewayServer, _doubles: list[FakeOpenAIServer]) -> None:
        for _ in range(6):  # one more than the faults that open a breaker
            reply = await gateway.ask("POST", "/v1/responses", {"model": "fake-model", "input": "x"})
            assert (reply.status, reply.body["error"]["type"]) == (404, "not_found")
            assert "fake-model" in reply.body["error"]["message"]
        assert [worker["breaker"]["state"] for worker in await workers(gateway)] == ["closed"]

    before(test, refusal(404, "no route /v1/responses"))
