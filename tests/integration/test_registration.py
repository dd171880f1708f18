"""Workers that make themselves known to a gateway, over real sockets, with a puppet for the engine."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atomesh.engine.registrar import HttpDoor, Registrar
from atomesh.protocol.registration import NONCE_TTL_S, Offer, Registration, register
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker, serving


def newcomer(tmp_path: Path) -> tuple[PuppetWorker, str]:
    puppet = PuppetWorker("unified", SECRET)
    puppet.description = replace(puppet.description, worker_id="newcomer")
    return puppet, f"unix:{tmp_path}/newcomer"


def registrar(made: PuppetMesh, address: str, incarnation: str, secret: bytes = SECRET) -> Registrar:
    url = str(made.http._base_url)
    return Registrar([HttpDoor(url)], secret, address, incarnation)


async def post(made: PuppetMesh, message: Registration) -> tuple[int, dict[str, Any]]:
    body = {name: getattr(message, name) for name in message.__struct_fields__}
    async with made.http.post("/registration", json=body) as response:
        return response.status, json.loads(await response.text())


async def nonce(made: PuppetMesh) -> str:
    offer: Offer = await HttpDoor(str(made.http._base_url)).ask()
    return offer.nonce


def addresses(made: PuppetMesh) -> set[str]:
    return {worker.address for worker in made.gateway.registry.snapshot().workers}


def test_a_worker_registers_is_used_and_leaves(tmp_path: Path) -> None:
    async def scenario() -> None:
        puppet, address = newcomer(tmp_path)
        async with puppet_mesh(tmp_path, PuppetWorker("unified", SECRET)) as made, serving(puppet, address):
            own = registrar(made, address, puppet.description.incarnation)
            for _ in range(2):
                await own.tell_all("register")
            await until(lambda: puppet.hellos == 1 and made.worker(puppet).state == "ready")
            await registrar(made, address, "of another life").leave()
            assert address in addresses(made)
            await own.leave()
            await until(lambda: address not in addresses(made))

    run(scenario)


def test_nobody_without_the_secret_can_name_an_address(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with puppet_mesh(tmp_path, PuppetWorker("unified", SECRET)) as made:
            given = await nonce(made)
            good = register(SECRET, "register", "unix:/x", "i", given)
            forged = [
                register(b"another" * 5, "register", "unix:/x", "i", given),
                replace(good, address="unix:/y"),
                replace(good, kind="leave"),
                replace(good, incarnation="j"),
                register(SECRET, "register", "unix:/x", "i", "0.0-made-up"),
            ]
            for message in forged:
                status, body = await post(made, message)
                assert (status, body["error"]["type"]) == (403, "permission_denied")
            assert len(addresses(made)) == 1
            status, body = await post(made, register(SECRET, "register", "nowhere", "i", given))
            assert (status, body["error"]["param"]) == (400, "address")

    run(scenario)


def test_a_nonce_expires(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, PuppetWorker("unified", SECRET), clock=clock) as made:
            message = register(SECRET, "register", f"unix:{tmp_path}/x", "i", await nonce(made))
            clock.advance(NONCE_TTL_S + 1)
            assert (await post(made, message))[0] == 403
            assert len(addresses(made)) == 1

    run(scenario)


def test_the_operators_word_goes_before_the_workers(tmp_path: Path) -> None:
    async def scenario() -> None:
        named = PuppetWorker("unified", SECRET)
        async with puppet_mesh(tmp_path, named) as made:
            address, incarnation = made.worker(named).address, named.description.incarnation
            message = register(SECRET, "register", address, incarnation, await nonce(made))
            assert (await post(made, message))[1] == {"status": "known"}
            leave = register(SECRET, "leave", address, incarnation, await nonce(made))
            assert (await post(made, leave))[1] == {"status": "unknown"}
            removed = register(SECRET, "register", f"unix:{tmp_path}/x", "i", await nonce(made))
            assert (await post(made, removed))[1] == {"status": "registered"}
            made.gateway._backends.remove(f"unix:{tmp_path}/x")
            assert (await post(made, removed))[1] == {"status": "removed"}
            reborn = register(SECRET, "register", f"unix:{tmp_path}/x", "j", await nonce(made))
            assert (await post(made, reborn))[1] == {"status": "registered"}
            made.gateway._backends.remove(f"unix:{tmp_path}/x")

    run(scenario)


@pytest.mark.parametrize("status", [0, 1])
def test_a_gateway_that_does_not_answer_is_told_the_next_time(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        own = Registrar([HttpDoor("http://127.0.0.1:9")], SECRET, "unix:/x", "i")
        for _ in range(status + 1):
            await own.tell_all("register")
        assert own._missed == {"http://127.0.0.1:9"}

    run(scenario)
