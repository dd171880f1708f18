"""What should be a worker and is none of ours, counted by reason and not served from; one that is silent."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.engine.registrar import HttpDoor, Registrar
from atomesh.protocol.generation import WireError
from atomesh.protocol.registration import LEASE_S, NONCE_TTL_S, RENEW_S, register
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker, serving

OTHER_SECRET = b"o" * 32


def named(name: str, secret: bytes = SECRET) -> PuppetWorker:
    puppet = PuppetWorker("unified", secret)
    puppet.description = replace(puppet.description, worker_id=name)
    return puppet


async def shown(made: PuppetMesh) -> dict[str, dict[str, Any]]:
    """The workers' page by id; by address, where there was no hello."""
    return {worker["id"]: worker for worker in (await made.admin("/workers"))["workers"]}


async def refusals(made: PuppetMesh) -> dict[str, float]:
    """Those reasons that have been counted."""
    async with made.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    counted = (line.split("reason=")[1] for line in lines if line.startswith("atomesh_worker_refusals_total"))
    counts = {text.split('"')[1]: float(text.split()[-1]) for text in counted}
    return {reason: count for reason, count in counts.items() if count}


def registrar(made: PuppetMesh, address: str, secret: bytes = SECRET) -> Registrar:
    return Registrar([HttpDoor(str(made.http._base_url))], secret, address, "i")


def test_a_worker_with_another_secret_hangs_up_and_is_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        stranger, address = named("stranger", OTHER_SECRET), f"unix:{tmp_path}/stranger"
        async with puppet_mesh(tmp_path, named("ours")) as made, serving(stranger, address):
            assert await refusals(made) == {}
            made.gateway._backends.add(address)
            await until(lambda: made.gateway._worker_refusals["hung_up"] >= 2)
            page = await shown(made)
            assert (page[address]["state"], page["ours"]["state"]) == ("connecting", "ready")
            assert set(await refusals(made)) == {"hung_up"}
            assert stranger.hellos == 0
            made.gateway._backends.remove(address)
            assert (await refusals(made))["hung_up"] >= 2

    run(scenario)


def test_registrations_without_the_secret_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, named("ours"), clock=clock) as made:
            for _ in range(3):
                await registrar(made, f"unix:{tmp_path}/x", OTHER_SECRET).tell_all("register")
            assert await refusals(made) == {"registration_secret": 3.0}
            nonce = (await HttpDoor(str(made.http._base_url)).ask()).nonce
            clock.advance(NONCE_TTL_S + 1)
            with pytest.raises(OSError, match="the nonce is older than 30 s"):
                await HttpDoor(str(made.http._base_url)).tell(
                    register(SECRET, "register", f"unix:{tmp_path}/x", "i", nonce)
                )
            assert await refusals(made) == {"registration_secret": 3.0, "registration_nonce": 1.0}
            assert set(await shown(made)) == {"ours"}

    run(scenario)


def test_a_lost_worker_is_shown_until_its_lease_is_over_and_then_no_more(tmp_path: Path) -> None:
    """Nobody has to come by for it to be forgotten; who is there, or was named, is not."""

    async def scenario() -> None:
        clock = ManualClock(100.0)
        dying, alive = named("dying"), named("alive")
        async with puppet_mesh(tmp_path, named("named"), clock=clock) as made:
            async with serving(alive, f"unix:{tmp_path}/alive"):
                async with serving(dying, f"unix:{tmp_path}/dying"):
                    for name in ("dying", "alive"):
                        await registrar(made, f"unix:{tmp_path}/{name}").tell_all("register")
                    await until(lambda: alive.hellos == dying.hellos == 1)
                await until(lambda: made.worker(dying).state == "lost")
                clock.advance(LEASE_S)
                await until(lambda: made.worker(alive).heard_at == clock.now())
                made.gateway._registrations._forget_old()
                assert (await shown(made))["dying"]["state"] == "lost"
                clock.advance(0.01)
                await until(lambda: len(made.gateway.registry.snapshot().workers) == 2)
                assert set(await shown(made)) == {"named", "alive"}
            await until(lambda: len(made.gateway.registry.snapshot().workers) == 1)
            assert set(await shown(made)) == {"named"}

    run(scenario)


def test_one_that_renews_is_kept_though_it_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, named("named"), clock=clock) as made:
            own = registrar(made, address := f"unix:{tmp_path}/nobody")
            for _ in range(int(2 * LEASE_S / RENEW_S)):
                await own.tell_all("register")
                clock.advance(RENEW_S)
                made.gateway._registrations._forget_old()
            assert (await shown(made))[address]["state"] == "connecting"
            await own.leave()
            assert set(await shown(made)) == {"named"}

    run(scenario)


def test_a_silent_worker_is_shown_as_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, quiet, talking = ManualClock(100.0), named("quiet"), named("talking")
        async with puppet_mesh(tmp_path, quiet, talking, clock=clock) as made:
            quiet.is_silent = True
            clock.advance(1.01)
            await until(lambda: made.worker(talking).heard_at == clock.now())
            page = await shown(made)
            assert (page["quiet"]["state"], page["quiet"]["silent_s"]) == ("silent", 1.01)
            assert (page["talking"]["state"], page["talking"]["silent_s"]) == ("ready", 0.0)
            assert await by_state(made) == {"silent": 1.0, "ready": 1.0}
            quiet.is_silent = False
            await until(lambda: made.worker(quiet).heard_at == clock.now())
            assert (await shown(made))["quiet"]["state"] == "ready"
            assert await by_state(made) == {"ready": 2.0}

    run(scenario)


async def by_state(made: PuppetMesh) -> dict[str, float]:
    async with made.http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    told = [line.split('"') for line in lines if line.startswith("atomesh_workers{")]
    return {state: float(rest.split()[-1]) for _, state, rest in told if float(rest.split()[-1])}


def test_when_to_come_back_is_the_workers_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = named("full")
        async with puppet_mesh(tmp_path, worker) as made:
            asked = made.asking()
            error = WireError("ServiceUnavailableError", "it is full", None, 17)
            worker.say(await worker.submitted(), finish="error", error=error)
            reply = await asked
            assert (reply.status, reply.message, reply.headers["retry-after"]) == (503, "it is full", "17")

    run(scenario)
