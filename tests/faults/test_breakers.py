"""FAULTS E5: a worker that fails again and again is left alone, probed, and used again."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.mesh.cluster.breaker import MAX_FAULTS
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.protocol.generation import PrefillLeg, Timings
from atomesh.protocol.worker import Role
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker

TIMINGS = Timings(queue_s=0.0, prefill_s=0.001)
STRICT = DispatchRules(PlacementRules(require_disaggregation=True))


def puppet(role: Role, number: int = 0) -> PuppetWorker:
    made = PuppetWorker(role, SECRET)
    name = f"{role}-{number}"
    made.description = replace(made.description, worker_id=name, kv_address=f"unix:/{name}.kv")
    return made


async def fail_often(made: PuppetMesh, worker: PuppetWorker, kind: str, times: int = MAX_FAULTS) -> list[int]:
    statuses = []
    for number in range(len(worker.submits) + 1, len(worker.submits) + times + 1):
        asked = made.asking()
        worker.fail(await worker.submitted(number), kind)
        statuses.append((await asked).status)
    return statuses


async def serve(made: PuppetMesh, worker: PuppetWorker) -> int:
    number = len(worker.submits) + 1
    asked = made.asking(max_tokens=1)
    worker.say(await worker.submitted(number), 70, finish="length", timings=TIMINGS, cached_tokens=0)
    return (await asked).status


async def breaker_of(made: PuppetMesh, worker: PuppetWorker) -> dict[str, Any]:
    workers = (await made.admin("/workers"))["workers"]
    [found] = [one["breaker"] for one in workers if one["id"] == worker.description.worker_id]
    return dict(found)


@pytest.mark.parametrize("is_strict", [False, True])
def test_e5_with_the_breaker_of_p_open_no_decode_leg_is_sent(tmp_path: Path, is_strict: bool) -> None:
    async def scenario() -> None:
        p, d = puppet("prefill"), puppet("decode")
        options: dict[str, Any] = {"rules": STRICT} if is_strict else {}
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, p, d, is_served=False, clock=clock, **options) as made:
            clock.advance(61.0)  # what is new at the start is waited for
            await until(lambda: not made.worker(p).is_silent(clock.now()))
            assert await fail_often(made, p, "EngineError") == [500] * MAX_FAULTS
            assert (await breaker_of(made, p))["state"] == "open"
            d.asked.clear()
            if is_strict:
                reply = await made.complete()
                assert reply.status == 503
                assert int(reply.headers["retry-after"]) >= 1
                assert d.asked == []
            else:
                asked = made.asking(max_tokens=1)
                submit = await d.submitted()
                assert submit.leg is None  # the whole of it, where prefill may be local
                d.say(submit, 70, finish="length", timings=TIMINGS, cached_tokens=0)
                assert (await asked).headers["x-serving-path"] == "local-prefill"
            assert len(p.submits) == MAX_FAULTS
            clock.advance(1.0)
            await until(lambda: not made.worker(p).is_silent(clock.now()))
            assert (await breaker_of(made, p)) == {"state": "half-open", "faults": 5, "retry_in_s": 0.0}
            asked = made.asking(max_tokens=1)
            probe = await p.submitted(MAX_FAULTS + 1)
            assert probe.leg is None or isinstance(probe.leg, PrefillLeg)
            p.say(probe, 70, finish="length", timings=TIMINGS, cached_tokens=0)
            assert (await asked).status == 200
            assert (await breaker_of(made, p))["state"] == "closed"

    run(scenario)


def test_e5_out_after_n_faults_half_open_probe_and_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        bad, good = puppet("unified", 0), puppet("unified", 1)
        clock = ManualClock(100.0)
        rules = DispatchRules()
        async with puppet_mesh(tmp_path, bad, good, is_served=False, clock=clock, rules=rules) as made:
            good.is_silent = True
            await until(lambda: made.worker(good).state == "ready")
            clock.advance(1.5)
            await until(lambda: not made.worker(bad).is_silent(clock.now()))
            assert await fail_often(made, bad, "EngineError") == [500] * MAX_FAULTS
            good.is_silent = False
            await until(lambda: not made.worker(good).is_silent(clock.now()))
            for _ in range(3):
                assert await serve(made, good) == 200
            assert len(bad.submits) == MAX_FAULTS
            clock.advance(1.0)
            await until(lambda: not made.worker(bad).is_silent(clock.now()))
            await until(lambda: not made.worker(good).is_silent(clock.now()))
            held = [made.asking(max_tokens=1) for _ in range(4)]
            await until(lambda: len(bad.submits) + len(good.submits) == MAX_FAULTS + 3 + 4)
            assert len(bad.submits) == MAX_FAULTS + 1  # one probe, whatever else there is to do
            bad.say(bad.submits[-1], 70, finish="length", timings=TIMINGS, cached_tokens=0)
            for submit in good.submits[-3:]:
                good.say(submit, 70, finish="length", timings=TIMINGS, cached_tokens=0)
            assert [(await one).status for one in held] == [200] * 4
            assert (await breaker_of(made, bad))["state"] == "closed"

    run(scenario)


def test_e5_only_faults_in_a_row_count(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = puppet("unified")
        async with puppet_mesh(tmp_path, worker, is_served=False) as made:
            for _ in range(3):
                assert await fail_often(made, worker, "EngineError", MAX_FAULTS - 1) == [500] * (
                    MAX_FAULTS - 1
                )
                assert (await breaker_of(made, worker))["faults"] == MAX_FAULTS - 1
                assert await serve(made, worker) == 200
                assert (await breaker_of(made, worker))["faults"] == 0

    run(scenario)


def test_a_refusal_of_the_request_is_nobodys_fault(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = puppet("unified")
        async with puppet_mesh(tmp_path, worker, is_served=False) as made:
            assert await fail_often(made, worker, "InvalidRequestError", 8) == [400] * 8
            assert (await breaker_of(made, worker)) == {"state": "closed", "faults": 0, "retry_in_s": None}
            assert await serve(made, worker) == 200

    run(scenario)


def test_where_all_are_out_it_is_503(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = puppet("unified")
        async with puppet_mesh(tmp_path, worker, is_served=False, clock=ManualClock(100.0)) as made:
            assert await fail_often(made, worker, "EngineError") == [500] * MAX_FAULTS
            reply = await made.complete()
            assert (reply.status, len(worker.submits)) == (503, MAX_FAULTS)
            assert "failed again and again" in reply.message

    run(scenario)
