"""The operator's routes over a mesh of puppets: roles, leaving, joining, KV books, faults, figures."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from atomesh.clock import MonotonicClock
from atomesh.mesh.gateway.access import AccessOptions
from atomesh.mesh.gateway.app import Gateway, GatewayOptions
from atomesh.mesh.gateway.served_models import TextSide
from atomesh.mesh.gateway.tenant_source import TenantOptions
from atomesh.protocol.fault_points import FAULT_POINTS, MAX_SHOTS
from atomesh.protocol.frames import Inspect, Inspected, ResetPrefixCache, SetFault, SetRole
from atomesh.protocol.generation import Timings
from atomesh.protocol.worker import PRESETS, LoadReport, Role, RoleWeights
from atomesh.testing.byte_tokenizer import ByteTokenizer
from atomesh.testing.plain_chat_template import PlainChatTemplate
from atomesh.testing.puppet_worker import PuppetWorker, serving

SECRET = b"s" * 32
ADMIN = {"authorization": "Bearer the-admin-token"}
BODY = {"model": "scripted", "prompt": [1, 2, 3], "max_tokens": 3, "return_token_ids": True}
TIMINGS = Timings(queue_s=0.001, prefill_s=0.002)


class Template(PlainChatTemplate):
    def close(self) -> None:
        """There is no process to end."""


@dataclass
class Mesh:
    gateway: Gateway
    http: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] = ADMIN
    ) -> tuple[int, Any]:
        async with self.http.request(method, path, json=body, headers=headers) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def worker(self, worker_id: str) -> dict[str, Any]:
        _, body = await self.ask("GET", "/workers")
        [found] = [worker for worker in body["workers"] if worker["id"] == worker_id]
        return found

    def answer(self) -> "asyncio.Task[tuple[int, Any]]":
        return asyncio.create_task(self.ask("POST", "/v1/completions", BODY, {}))


def puppet(tmp_path: Path, role: Role, number: int = 0) -> PuppetWorker:
    made = PuppetWorker(role, SECRET)
    name = f"{role}-{number}"
    made.description = replace(made.description, worker_id=name, kv_address=f"unix:{tmp_path}/{name}.kv")
    return made


def address(tmp_path: Path, one: PuppetWorker) -> str:
    return f"unix:{tmp_path}/{one.description.worker_id}"


@asynccontextmanager
async def mesh(tmp_path: Path, *puppets: PuppetWorker, **options: Any) -> AsyncIterator[Mesh]:
    addresses = tuple(address(tmp_path, one) for one in puppets)
    chosen = GatewayOptions(
        workers=addresses, secret=SECRET, admin_token="the-admin-token", drain_s=0.0, **options
    )
    gateway = Gateway(chosen, lambda _: TextSide(ByteTokenizer(), Template()), MonotonicClock())
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with AsyncExitStack() as stack:
        for one in puppets:
            await stack.enter_async_context(serving(one, address(tmp_path, one)))
        task = asyncio.create_task(gateway.run(listener))
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
        await until(lambda: all(one.hellos for one in puppets))
        made = Mesh(gateway, http)
        await until_async(lambda: is_ready(made))
        yield made
        gateway.stop()
        await asyncio.wait((task,))


async def is_ready(made: Mesh) -> bool:
    return (await made.ask("GET", "/ready"))[0] == 200


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110  as an operator would look
            await asyncio.sleep(0.005)


async def until_async(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10.0):
        while not await condition():  # noqa: ASYNC110  as an operator would look
            await asyncio.sleep(0.005)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30.0):
            await scenario()

    asyncio.run(main())


async def prefilled(one: PuppetWorker, number: int = 1) -> None:
    one.say(await one.submitted(number), 7, timings=TIMINGS, cached_tokens=0)


async def decoded(one: PuppetWorker, number: int = 1) -> None:
    submit = await one.submitted(number)
    one.say(submit, 8, kv_source="transferred", timings=Timings(0.0, 0.0, 0.25))
    one.say(submit, 9, finish="length")


ROUTES = [
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("DELETE", "/workers/unified-0"),
    ("POST", "/workers/unified-0/role"),
    ("GET", "/debug/kv"),
    ("POST", "/debug/fault"),
    ("POST", "/reset_prefix_cache"),
    ("GET", "/tenants"),
]


def test_none_opens_without_the_admin_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = puppet(tmp_path, "unified")
        async with mesh(
            tmp_path, one, enable_faults=True, access=AccessOptions(TenantOptions(("key",)))
        ) as made:
            for method, path in ROUTES:
                assert (await made.ask(method, path, {}, {}))[0] == 401
                assert (await made.ask(method, path, {}, {"authorization": "Bearer key"}))[0] == 403
            assert (await made.ask("GET", "/v1/models", None, {}))[0] == 401
            assert one.asked == []

    run(scenario)


def test_a_role_is_changed_live_and_told_again_to_the_next_life(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = puppet(tmp_path, "unified"), puppet(tmp_path, "unified", 1)
        async with mesh(tmp_path, one, other) as made:
            status, body = await made.ask("POST", "/workers/unified-0/role", {"role": "prefill"})
            assert (status, body["role"], body["weights"]) == (
                200,
                "prefill",
                {"prefill": 1.0, "decode": 0.0},
            )
            weights = {"prefill": 0.0, "decode": 0.5}
            status, body = await made.ask("POST", "/workers/unified-1/role", {"weights": weights})
            assert (status, body["role"], body["weights"]) == (200, "decode", weights)
            await one.until(lambda told: SetRole(PRESETS["prefill"]) in told.asked)
            await other.until(lambda told: SetRole(RoleWeights(**weights)) in told.asked)
            assert (await made.worker("unified-0"))["role"] == "prefill"
            answer = made.answer()
            await prefilled(one)
            await decoded(other)
            status, body = await answer
            assert body["choices"][0]["token_ids"] == [7, 8, 9]
            one.reincarnate()
            one.hang_up()
            await one.until(lambda told: told.asked.count(SetRole(PRESETS["prefill"])) == 2)

    run(scenario)


@pytest.mark.parametrize("body", [{"role": "parked"}, {"weights": {"prefill": 0.0, "decode": 0.0}}])
def test_a_parked_worker_is_shown_as_such_and_given_nothing(tmp_path: Path, body: object) -> None:
    async def scenario() -> None:
        one, other = puppet(tmp_path, "unified"), puppet(tmp_path, "unified", 1)
        async with mesh(tmp_path, one, other) as made:
            status, told = await made.ask("POST", "/workers/unified-0/role", body)
            parked = {"prefill": 0.0, "decode": 0.0}
            assert (status, told["role"], told["weights"]) == (200, "parked", parked)
            shown = await made.worker("unified-0")
            assert (shown["role"], shown["weights"], shown["state"]) == ("parked", parked, "ready")
            await one.until(lambda told: SetRole(PRESETS["parked"]) in told.asked)
            for number in (1, 2):
                answer = made.answer()
                submit = await other.submitted(number)
                other.say(submit, 7, 8, 9, finish="length", timings=TIMINGS, cached_tokens=0)
                assert (await answer)[1]["choices"][0]["token_ids"] == [7, 8, 9]
            assert one.submits == []
            await made.ask("POST", "/workers/unified-1/role", {"role": "parked"})
            status, told = await made.answer()
            assert (status, told["error"]["type"]) == (503, "service_unavailable_error")

    run(scenario)


@pytest.mark.parametrize("role", ["parked", "prefill", "decode", "unified"])
def test_a_worker_is_shown_with_the_role_that_it_says_it_has(tmp_path: Path, role: Role) -> None:
    async def scenario() -> None:
        one, other = puppet(tmp_path, role, 1), puppet(tmp_path, "unified")
        async with mesh(tmp_path, one, other) as made:
            shown = await made.worker(f"{role}-1")
            assert (shown["role"], shown["kv_address"]) == (role, one.description.kv_address)

    run(scenario)


BAD_ROLES: dict[str, object] = {
    "neither": {},
    "both": {"role": "prefill", "weights": {"prefill": 1.0, "decode": 1.0}},
    "no role": {"role": "leader"},
    "negative": {"weights": {"prefill": -1.0, "decode": 1.0}},
    "too much": {"weights": {"prefill": 1.0, "decode": 1e9}},
    "no object": [1, 2],
}
HALF_WEIGHTS: dict[str, dict[str, float | None]] = {
    "weights.prefill": {"decode": 1.0},
    "weights.decode": {"prefill": 1.0, "decode": None},
}


def test_what_is_no_role_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        one = puppet(tmp_path, "unified")
        async with mesh(tmp_path, one) as made:
            for body in BAD_ROLES.values():
                status, answer = await made.ask("POST", "/workers/unified-0/role", body)
                assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
            for missing, weights in (("weights.prefill", {}), *HALF_WEIGHTS.items()):
                status, answer = await made.ask("POST", "/workers/unified-0/role", {"weights": weights})
                assert (status, answer["error"]["param"]) == (400, missing)
                assert f"{missing} is missing" in answer["error"]["message"]
            assert (await made.ask("POST", "/workers/nobody/role", {"role": "prefill"}))[0] == 404
            long = {"role": "prefill", "padding": "x" * 100_000}
            assert (await made.ask("POST", "/workers/unified-0/role", long))[0] == 413
            assert one.asked == []
            assert (await made.worker("unified-0"))["role"] == "unified"

    run(scenario)


@pytest.mark.parametrize("leaving", ["prefill", "decode"])
def test_a_drained_worker_finishes_its_part_of_each_hand_off_first(tmp_path: Path, leaving: Role) -> None:
    async def scenario() -> None:
        p, d = puppet(tmp_path, "prefill"), puppet(tmp_path, "decode")
        async with mesh(tmp_path, p, d) as made:
            answer = made.answer()
            await p.submitted()
            status, body = await made.ask("DELETE", f"/workers/{leaving}-0?drain=true")
            assert (status, body["state"]) == (200, "draining")
            assert (await made.worker(f"{leaving}-0"))["state"] == "draining"
            await prefilled(p)
            await d.submitted()
            assert (await made.worker(f"{leaving}-0"))["in_flight"] == 1
            await decoded(d)
            status, body = await answer
            assert (status, body["choices"][0]["token_ids"]) == (200, [7, 8, 9])
            assert [worker["id"] for worker in (await made.ask("GET", "/workers"))[1]["workers"]] == [
                "decode-0" if leaving == "prefill" else "prefill-0"
            ]

    run(scenario)


def test_a_worker_that_is_removed_loses_its_work_to_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, other = puppet(tmp_path, "unified"), puppet(tmp_path, "unified", 1)
        async with mesh(tmp_path, one, other) as made:
            answer = made.answer()
            submit = await one.submitted()
            one.say(submit, 7, timings=TIMINGS, cached_tokens=0)
            await asyncio.sleep(0.02)  # the token arrives before the worker goes
            assert (await made.ask("DELETE", "/workers/unified-0"))[1]["state"] == "removed"
            rest = await other.submitted()
            assert rest.leg is not None
            assert rest.leg.outputs == {0: [7]}
            other.say(rest, 8, kv_source="recomputed")
            other.say(rest, 9, finish="length")
            assert (await answer)[1]["choices"][0]["token_ids"] == [7, 8, 9]
            assert (await made.ask("DELETE", "/workers/unified-0"))[0] == 404

    run(scenario)


def test_a_worker_joins_a_running_gateway(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, late = puppet(tmp_path, "unified"), puppet(tmp_path, "unified", 1)
        async with mesh(tmp_path, one) as made, serving(late, address(tmp_path, late)):
            asked = {"address": address(tmp_path, late)}
            assert await made.ask("POST", "/workers", asked) == (200, {**asked, "state": "connecting"})
            await late.until(lambda one: one.hellos)
            assert (await made.worker("unified-1"))["state"] == "ready"
            assert await made.ask("POST", "/workers", asked) == (200, {**asked, "state": "ready"})
            status, body = await made.ask("POST", "/workers", {"address": "nowhere"})
            assert (status, body["error"]["param"]) == (400, "address")
        assert late.hellos == 1

    run(scenario)


@pytest.mark.parametrize("wrong", ["127.0.0.1:9", "unix:/nowhere/at/all.sock"])
def test_a_worker_that_was_never_reached_is_removed_by_its_address(tmp_path: Path, wrong: str) -> None:
    async def scenario() -> None:
        async with mesh(tmp_path, puppet(tmp_path, "unified")) as made:
            assert (await made.ask("POST", "/workers", {"address": wrong}))[0] == 200
            assert (await made.worker(wrong))["state"] == "connecting"
            status, body = await made.ask("DELETE", f"/workers/{wrong}")
            assert (status, body) == (200, {"id": wrong, "state": "removed"})
            _, body = await made.ask("GET", "/workers", None)
            assert [one["id"] for one in body["workers"]] == ["unified-0"]

    run(scenario)


def test_a_fault_is_armed_only_where_the_worker_takes_faults(tmp_path: Path) -> None:
    async def scenario() -> None:
        willing, other = puppet(tmp_path, "prefill"), puppet(tmp_path, "decode")
        other.description = replace(other.description, takes_faults=False)
        async with mesh(tmp_path, willing, other, enable_faults=True) as made:
            fault = {"point": "step_fail", "count": 1}
            assert (await made.ask("POST", "/debug/fault", fault))[1]["workers"] == 1
            status, body = await made.ask("POST", "/debug/fault", {**fault, "worker": "decode-0"})
            assert (status, body["error"]["param"]) == (400, "worker")
            assert "--enable-faults" in body["error"]["message"]
            await willing.until(lambda told: SetFault("step_fail", 1) in told.asked)
            assert SetFault("step_fail", 1) not in other.asked

    run(scenario)


def test_the_kv_books_of_every_worker(tmp_path: Path) -> None:
    async def answer(one: PuppetWorker, total: int) -> None:
        await one.until(lambda told: any(isinstance(message, Inspect) for message in told.asked))
        [asked] = [message for message in one.asked if isinstance(message, Inspect)]
        one.send(Inspected(asked.query_id, total, {"free": total - 2, "held": 2}, {"r": 2}))
        one.send(Inspected(asked.query_id + 1, 1, {}, {}))

    async def scenario() -> None:
        p, d = puppet(tmp_path, "prefill"), puppet(tmp_path, "decode")
        async with mesh(tmp_path, p, d) as made:
            running = made.answer()
            await p.submitted()
            answering = asyncio.gather(answer(p, 64), answer(d, 32))
            _, body = await made.ask("GET", "/debug/kv")
            await answering
            books = {worker["id"]: worker for worker in body["workers"]}
            assert books["prefill-0"] == {
                "id": "prefill-0",
                "state": "ready",
                "total": 64,
                "states": {"free": 62, "held": 2},
                "owners": {"r": 2},
                "balanced": True,
            }
            assert books["decode-0"]["total"] == 32
            assert body["open_tickets"] == 1
            await prefilled(p)
            await decoded(d)
            await running
            p.asked.clear()
            d.asked.clear()
            asked = asyncio.create_task(made.ask("GET", "/debug/kv"))
            await answer(p, 64)
            _, body = await asked  # decode says nothing
            assert [(worker["id"], worker["total"]) for worker in body["workers"]] == [
                ("prefill-0", 64),
                ("decode-0", None),
            ]
            assert body["open_tickets"] == 0

    run(scenario)


def test_faults_only_where_they_are_enabled(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet(tmp_path, "prefill"), puppet(tmp_path, "decode")
        fault = {"point": "kv_drop_push", "count": 2, "argument": 0.5}
        async with mesh(tmp_path, p, d) as made:
            assert (await made.ask("POST", "/debug/fault", fault))[0] == 404
        async with mesh(tmp_path, p, d, enable_faults=True) as made:
            assert (await made.ask("POST", "/debug/fault", fault))[1]["workers"] == 2
            await p.until(lambda told: SetFault("kv_drop_push", 2, 0.5) in told.asked)
            await d.until(lambda told: SetFault("kv_drop_push", 2, 0.5) in told.asked)
            one = {"point": "kv_flip_bit", "worker": "decode-0"}
            assert (await made.ask("POST", "/debug/fault", one))[1]["workers"] == 1
            await d.until(lambda told: SetFault("kv_flip_bit", 1) in told.asked)
            assert SetFault("kv_flip_bit", 1) not in p.asked
            assert (await made.ask("POST", "/reset_prefix_cache"))[0] == 200
            await p.until(lambda told: ResetPrefixCache() in told.asked)

    run(scenario)


BAD_FAULTS: list[tuple[dict[str, object], str, str]] = [
    ({"point": "kv_flip_bits"}, "point", "'kv_flip_bits'"),
    ({"point": "", "count": 0}, "point", "''"),
    ({"point": "kv_drop_push", "count": -1}, "count", "-1"),
    ({"point": "kv_drop_push", "count": MAX_SHOTS + 1}, "count", str(MAX_SHOTS)),
]


@pytest.mark.parametrize(("fault", "param", "value"), BAD_FAULTS, ids=str)
def test_a_fault_that_cannot_be_armed_is_refused_and_told_to_nobody(
    tmp_path: Path, fault: dict[str, object], param: str, value: str
) -> None:
    async def scenario() -> None:
        one = puppet(tmp_path, "unified")
        async with mesh(tmp_path, one, enable_faults=True) as made:
            for target in ({}, {"worker": "unified-0"}):
                status, body = await made.ask("POST", "/debug/fault", {**fault, **target})
                error = body["error"]
                assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
                assert value in error["message"]
                assert param != "point" or all(point in error["message"] for point in FAULT_POINTS)
            assert (await made.ask("POST", "/debug/fault", {"point": "step_fail"}))[0] == 200
            await one.until(lambda told: told.asked)
            assert one.asked == [SetFault("step_fail", 1)]

    run(scenario)


def test_the_way_and_the_times_are_told_in_headers_chunks_and_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d = puppet(tmp_path, "prefill"), puppet(tmp_path, "decode")
        load = LoadReport(
            total_blocks=64, free_blocks=50, cached_blocks=5, reserved_blocks=4, quarantined_blocks=2
        )
        d.load = replace(load, kv_transfers={"received_committed": 3}, kv_refusals={"ticket_peer": 1})
        async with mesh(tmp_path, p, d) as made:
            headers = {"x-explain": "1"}
            body = {**BODY, "stream": True}
            asked = asyncio.create_task(made.http.post("/v1/completions", json=body, headers=headers))
            await prefilled(p)
            async with await asked as stream:
                assert stream.headers["x-serving-path"] == "prefill-decode"
                assert "transfer;dur=0.000" in stream.headers["server-timing"]
                submit = await d.submitted()
                d.say(submit, 8, kv_source="recomputed", timings=Timings(0.0, 0.0, 0.25))
                d.say(submit, 9, finish="length")
                frames = (await stream.content.read()).decode().split("\n\n")
            last = json.loads(frames[-3].removeprefix("data: "))
            assert (last["choices"], last["serving_path"]) == ([], "recomputed")
            assert {name: last["timings"][name] for name in ("queue", "prefill", "transfer")} == {
                "queue": 1.0,
                "prefill": 2.0,
                "transfer": 250.0,
            }
            assert last["timings"]["decode"] > 0.0
            metrics = (await made.ask("GET", "/metrics", None, {}))[1]
        for line in (
            'atomesh_requests_served_total{engine="0",model_name="scripted",path="recomputed"} 1.0',
            'atomesh_kv_transfers_total{model_name="scripted",outcome="received_committed"} 3.0',
            'atomesh_kv_refusals_total{model_name="scripted",reason="ticket_peer"} 1.0',
            'atomesh_kv_blocks{model_name="scripted",state="reserved",worker="decode-0"} 4.0',
            'atomesh_kv_blocks{model_name="scripted",state="quarantined",worker="decode-0"} 2.0',
            'atomesh_workers{state="ready"} 2.0',
            "atomesh_tickets_minted_total 1.0",
            "atomesh_tickets_open 0.0",
        ):
            assert line in metrics

    run(scenario)
