"""GET /rebalance: which workers were given, or would have been given, to the other pool, and why."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.mesh.cluster.rebalance import COOLDOWN_S, HOLD_S
from atomesh.mesh.gateway.rebalancer import Mode
from atomesh.protocol.frames import SetRole
from atomesh.protocol.worker import PRESETS, Role
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import ADMIN_TOKEN, SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker

STEP = 2  # tokens: a prompt of three is more than the pool can do at once


def puppet(role: Role, number: int) -> PuppetWorker:
    made = PuppetWorker(role, SECRET)
    name = f"{role}-{number}"
    made.description = replace(
        made.description,
        worker_id=name,
        kv_address=f"unix:/{name}.kv",
        max_num_batched_tokens=STEP,
        max_num_seqs=8,
    )
    return made


async def press(made: PuppetMesh, clock: ManualClock, seconds: float) -> None:
    """The gateway looks now, and again after so long, in which every worker was heard."""
    made.gateway._rebalancer.look()
    clock.advance(seconds)
    await until(lambda: all(made.worker(one).heard_at == clock.now() for one in made.puppets.values()))
    made.gateway._rebalancer.look()


async def moves(made: PuppetMesh, to: str, mode: Mode) -> float:
    async with made.http.get("/metrics") as response:
        text = await response.text()
    [line] = [one for one in text.splitlines() if f'rebalance_moves_total{{mode="{mode}",to="{to}"}}' in one]
    return float(line.split()[-1])


@pytest.mark.parametrize("mode", ["off", "dry-run", "on"])
def test_what_was_moved_or_would_have_been(tmp_path: Path, mode: Mode) -> None:
    async def scenario() -> None:
        p, d, e = puppet("prefill", 0), puppet("decode", 0), puppet("decode", 1)
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, p, d, e, clock=clock, rebalance=mode) as made:
            assert await made.admin("/rebalance") == {"mode": mode, "moves": []}
            asked = made.asking(max_tokens=1)
            submit = await p.submitted()
            for _ in () if mode == "off" else (1, 2):
                await press(made, clock, HOLD_S)
            clock.advance(1.5)
            given = [one for worker in (d, e) for one in worker.asked if isinstance(one, SetRole)]
            shown = await made.admin("/rebalance")
            expected: list[dict[str, Any]] = [
                {
                    "seconds_ago": HOLD_S + 1.5,
                    "address": made.worker(d).address,
                    "worker_id": "decode-0",
                    "to": "prefill",
                    "prefill_pressure": 1.5,
                    "decode_pressure": 0.0,
                }
            ]
            assert shown == {"mode": mode, "moves": [] if mode == "off" else expected}
            assert await moves(made, "prefill", mode) == (0.0 if mode == "off" else 1.0)
            assert await moves(made, "decode", mode) == 0.0
            assert given == ([SetRole(PRESETS["prefill"])] if mode == "on" else [])
            role = "prefill" if mode == "on" else "decode"
            assert {one["id"]: one["role"] for one in (await made.admin("/workers"))["workers"]} == {
                "prefill-0": "prefill",
                "decode-0": role,
                "decode-1": "decode",
            }
            p.say(submit, 9, finish="length", cached_tokens=0)
            assert (await asked).status == 200

    run(scenario)


def test_once_more_only_after_a_while(tmp_path: Path) -> None:
    async def scenario() -> None:
        p, d, e = puppet("prefill", 0), puppet("decode", 0), puppet("decode", 1)
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, p, d, e, clock=clock, rebalance="dry-run") as made:
            asked = made.asking(max_tokens=1)
            submit = await p.submitted()
            await press(made, clock, HOLD_S)
            await press(made, clock, COOLDOWN_S - 0.1)
            assert len((await made.admin("/rebalance"))["moves"]) == 1
            await press(made, clock, 0.1)
            assert len((await made.admin("/rebalance"))["moves"]) == 2
            p.say(submit, 9, finish="length", cached_tokens=0)
            assert (await asked).status == 200

    run(scenario)


def test_it_is_the_operators_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with puppet_mesh(tmp_path, puppet("unified", 0)) as made:
            for token, status in (("", 401), ("another", 403), (ADMIN_TOKEN, 200)):
                headers = {"authorization": f"Bearer {token}"} if token else {}
                async with made.http.get("/rebalance", headers=headers) as response:
                    assert response.status == status

    run(scenario)
