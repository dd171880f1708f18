"""FAULTS D2: a request that kills its workers touches two of them, and takes no other's answer along."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from atomesh.mesh.request_flow.quarantine import FOR_S
from atomesh.mesh.request_flow.retry_budget import FLOOR
from atomesh.protocol.frames import Submit
from atomesh.protocol.generation import DecodeLeg, Timings
from atomesh.testing.manual_clock import ManualClock
from atomesh.testing.puppet_mesh import SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker

TIMINGS = Timings(queue_s=0.0, prefill_s=0.001)
KILLER = [6, 6, 6]
INNOCENT = [1, 2, 3]


def puppet(number: int) -> PuppetWorker:
    made = PuppetWorker("unified", SECRET)
    made.description = replace(made.description, worker_id=f"unified-{number}")
    return made


async def only_heard(made: PuppetMesh, clock: ManualClock, awake: PuppetWorker) -> None:
    """All others, if they are there at all, have been silent for more than a second."""
    for one in made.puppets.values():
        one.is_silent = one is not awake
    await asyncio.sleep(0)
    clock.advance(1.01)
    await until(lambda: made.worker(awake).heard_at == clock.now())


async def asked(worker: PuppetWorker, prompt: list[int]) -> Submit:
    def its() -> list[Submit]:
        return [one for one in worker.submits if one.request.prompt_token_ids == prompt]

    await worker.until(lambda _: its())
    return its()[-1]


def test_d2_it_touches_two_and_the_other_stream_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second, third = (puppet(number) for number in range(3))
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, first, second, third, clock=clock) as made:
            await only_heard(made, clock, first)
            innocent = made.asking(prompt=INNOCENT)
            first.say(await asked(first, INNOCENT), 70, timings=TIMINGS, cached_tokens=0)
            await until(lambda: made.worker(first).prefill_tokens == 0)
            killer = made.asking(prompt=KILLER)
            await asked(first, KILLER)
            for dying, heir in ((first, second), (second, third)):
                await only_heard(made, clock, heir)
                dying.hang_up()
                await asked(heir, INNOCENT)
                if heir is second:
                    await asked(heir, KILLER)
            reply = await killer
            assert (reply.status, reply.headers["x-should-retry"]) == (500, "false")
            assert "2 workers were lost" in reply.message
            rest = await asked(third, INNOCENT)
            assert isinstance(rest.leg, DecodeLeg)
            assert rest.leg.outputs == {0: [70]}
            for token in (71, 72, 73):
                third.say(rest, token, finish="length" if token == 73 else None)
            reply = await innocent
            assert (reply.status, reply.tokens) == (200, [70, 71, 72, 73])
            assert [one.request.prompt_token_ids for one in third.submits] == [INNOCENT]

            again = await made.complete(prompt=KILLER)
            assert (again.status, again.headers["x-should-retry"]) == (500, "false")
            assert len(third.submits) == 1
            assert await made.metric("atomesh_prompts_quarantined_total") == 1
            assert await made.metric("atomesh_quarantine_refusals_total") == 1

            clock.advance(FOR_S)
            await until(lambda: made.worker(third).heard_at == clock.now())
            pardoned = made.asking(prompt=KILLER, max_tokens=1)
            third.say(await asked(third, KILLER), 70, finish="length", timings=TIMINGS, cached_tokens=0)
            assert (await pardoned).status == 200

    run(scenario)


def test_retries_after_refusals_are_a_share_of_the_requests(tmp_path: Path) -> None:
    """Both are full: no more than the floor and a fifth are asked of the second, too."""

    async def scenario() -> None:
        workers = [puppet(number) for number in range(2)]
        clock = ManualClock(100.0)
        async with puppet_mesh(tmp_path, *workers, is_served=False, clock=clock) as made:
            refusing = [asyncio.create_task(refuse(worker)) for worker in workers]
            statuses = [(await made.complete()).status for _ in range(3)]
            assert statuses == [503] * 3
            assert sum(len(worker.submits) for worker in workers) == 6
            for worker in workers:  # what has been refused too often opens a breaker: another matter
                worker.asked.clear()
            for task in refusing:
                task.cancel()
            budget = made.gateway._shared.retries
            while budget.try_spend(clock.now()):
                pass
            assert budget.spent == FLOOR
            refusing = [asyncio.create_task(refuse(worker)) for worker in workers]
            reply = await made.complete()
            assert (reply.status, sum(len(worker.submits) for worker in workers)) == (503, 1)
            assert await made.metric("atomesh_retries_refused_total") == 2
            for task in refusing:
                task.cancel()

    run(scenario)


async def refuse(worker: PuppetWorker) -> None:
    number = 1
    while True:
        worker.fail(await worker.submitted(number), "ServiceUnavailableError", "it is full")
        number += 1
