"""FAULTS D3: who does not read his answer costs bounded memory, then loses it; other streams feel nothing."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from atomesh.mesh.backends.request_stream import MAX_UNREAD_STEPS
from atomesh.protocol.frames import Submit
from atomesh.protocol.generation import Timings, TokenLogprobs
from atomesh.testing.puppet_mesh import BODY, SECRET, PuppetMesh, puppet_mesh, run, until
from atomesh.testing.puppet_worker import PuppetWorker

BURST = 100  # steps at once, about what a hundred milliseconds of a fast engine bring
MOST_STEPS = 5 * MAX_UNREAD_STEPS  # the sockets' buffers between gateway and client hold some, too
SOON_S = 0.25
TOPS = [(token, -1.0) for token in range(100, 120)]
FAT = [TokenLogprobs(65, -1.0, 1, TOPS)]


async def ask(made: PuppetMesh, **fields: Any) -> aiohttp.ClientResponse:
    body = {**BODY, "stream": True, "max_tokens": 500, **fields}
    return await made.http.post("/v1/completions", json=body)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Up to the end, or to where it was cut."""
    try:
        async for line in response.content:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))
    except aiohttp.ClientPayloadError:
        return


def begin(worker: PuppetWorker, submit: Submit) -> None:
    worker.say(submit, 65, timings=Timings(0.0, 0.0), cached_tokens=0)


async def flood(worker: PuppetWorker, slow: Submit, fast: Submit, heard: AsyncIterator[Any]) -> list[float]:
    """Bursts for the slow one until it is given up; how long the fast one's next token took after each."""
    latencies: list[float] = []
    while not worker.aborts and BURST * len(latencies) < MOST_STEPS:
        for _ in range(BURST):
            worker.say(slow, 65, logprobs=FAT)
        began = time.monotonic()
        worker.say(fast, 66)
        async with asyncio.timeout(10.0):
            frame = await anext(heard)
        latencies.append(time.monotonic() - began)
        assert frame["choices"][0]["token_ids"] == [66]
    return latencies


def test_d3_a_reader_that_stands_still_is_given_up_and_delays_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = PuppetWorker("unified", SECRET)
        async with puppet_mesh(tmp_path, worker) as made:
            asked = asyncio.create_task(ask(made, logprobs=5))
            slow = await worker.submitted(1)
            begin(worker, slow)
            unread = await asked
            asked = asyncio.create_task(ask(made, prompt=[9, 9]))
            fast = await worker.submitted(2)
            begin(worker, fast)
            heard = events(await asked)
            assert (await anext(heard))["choices"][0]["token_ids"] == [65]

            latencies = await flood(worker, slow, fast, heard)

            assert worker.aborts == [slow.request.request_id]
            assert MAX_UNREAD_STEPS < BURST * len(latencies) < MOST_STEPS
            assert statistics.median(latencies) < SOON_S
            worker.say(fast, 67, finish="length")
            rest = [frame async for frame in heard]
            assert rest[-1]["choices"][0]["finish_reason"] == "length"
            await until(lambda: made.worker(worker).in_flight <= 1)
            told = [frame async for frame in events(unread)]
            assert told[-1]["error"]["code"] == 500
            assert "read faster" in told[-1]["error"]["message"]
            assert len(told) - 1 <= BURST * len(latencies) + 1
            unread.close()

    run(scenario)


def test_d3_one_that_is_merely_slow_gets_it_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = PuppetWorker("unified", SECRET)
        async with puppet_mesh(tmp_path, worker) as made:
            asked = asyncio.create_task(ask(made, logprobs=5))
            submit = await worker.submitted(1)
            begin(worker, submit)
            unread = await asked
            for _ in range(MAX_UNREAD_STEPS - 1):
                worker.say(submit, 65, logprobs=FAT)
            worker.say(submit, 65, finish="length", logprobs=FAT)
            told = [frame async for frame in events(unread)]
            tokens = [token for frame in told for one in frame["choices"] for token in one["token_ids"]]
            assert tokens == [65] * (MAX_UNREAD_STEPS + 1)
            assert told[-1]["choices"][0]["finish_reason"] == "length"
            assert worker.aborts == []

    run(scenario)
