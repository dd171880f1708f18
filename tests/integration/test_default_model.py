"""The default model behind `atomesh serve`: many streams at once, aborts at any moment, flat memory."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from atomesh.testing.served_process import ADMIN_TOKEN, ServedProcess, children_of, wait_for

STREAMS = 64
TIE = 1e-4  # in logits: 1e-5 of the largest, where the order of sums may choose between two tokens
SEED = 20260630
TOPICS = [
    "gravity",
    "bread",
    "the sea",
    "a fox",
    "prime numbers",
    "Paris",
    "rust",
    "a lighthouse",
    "bees",
    "snow",
]


@dataclass(frozen=True)
class Answer:
    """`gaps[i]` is the distance in logits between the two best tokens where `token_ids[i]` was chosen."""

    token_ids: list[int]
    gaps: list[float]
    finish_reason: str | None


def prompts(count: int) -> list[str]:
    rng = random.Random(SEED)
    return [
        f"{number}. A short note on {rng.choice(TOPICS)} and {rng.choice(TOPICS)}: "
        + "so " * rng.randrange(40)
        for number in range(count)
    ]


async def stream(
    session: aiohttp.ClientSession,
    server: ServedProcess,
    prompt: str,
    max_tokens: int,
    read_chunks: int | None = None,
) -> Answer:
    """A greedy streamed completion; the client leaves after `read_chunks` chunks, if given."""
    body = {
        "model": server.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True,
        "logprobs": 2, "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip
    token_ids: list[int] = []
    gaps: list[float] = []
    finish_reason = None
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        chunks = 0
        async for line in response.content:
            if read_chunks is not None and chunks >= read_chunks:
                break
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            token_ids += choice["token_ids"]
            gaps += [gap(top) for top in choice["logprobs"]["top_logprobs"]]
            finish_reason = choice["finish_reason"] or finish_reason
            chunks += 1
    return Answer(token_ids, gaps, finish_reason)


def gap(top: dict[str, float]) -> float:
    values = sorted(top.values(), reverse=True)
    return values[0] - values[1] if len(values) > 1 else 0.0


def run_together(server: ServedProcess, texts: Sequence[str], max_tokens: int, at_once: int) -> list[Answer]:
    async def all_of_them() -> list[Answer]:
        limit = asyncio.Semaphore(at_once)
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

            async def one(text: str) -> Answer:
                async with limit:
                    return await stream(session, server, text, max_tokens)

            return await asyncio.gather(*(one(text) for text in texts))

    return asyncio.run(all_of_them())


def assert_equal_up_to_ties(together: Answer, alone: Answer) -> None:
    for index, (left, right) in enumerate(zip(together.token_ids, alone.token_ids, strict=True)):
        if left != right:
            assert alone.gaps[index] <= TIE, f"token {index}: {left} together, {right} alone, no tie"
            return


def held_blocks(server: ServedProcess) -> int:
    load = server.workers()[0]["load"]
    return int(load["total_blocks"] - load["free_blocks"] - load["cached_blocks"])


def is_idle(server: ServedProcess) -> bool:
    load = server.workers()[0]["load"]
    return load["running"] == load["waiting"] == 0 and held_blocks(server) == 0


def resident_bytes(server: ServedProcess) -> int:
    """Of all the server's processes together, without what they share with files."""
    total = 0
    for pid in children_of(server.process.pid):
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        total += int(status.get("RssAnon", "0 kB").split()[0]) * 1024
    return total


def test_many_concurrent_streams_answer_as_each_does_alone(default_server: ServedProcess, soak: bool):
    texts = prompts(STREAMS)
    together = run_together(default_server, texts, max_tokens=16, at_once=STREAMS)
    assert [answer.finish_reason for answer in together] == ["length"] * STREAMS
    assert all(len(answer.token_ids) == 16 for answer in together)
    checked = range(STREAMS) if soak else random.Random(SEED).sample(range(STREAMS), 12)
    default_server.request("POST", "/reset_prefix_cache", token=ADMIN_TOKEN)
    for index in checked:
        [alone] = run_together(default_server, [texts[index]], max_tokens=16, at_once=1)
        assert_equal_up_to_ties(together[index], alone)
    wait_for(lambda: is_idle(default_server))


def test_aborts_at_random_moments_leave_no_block_behind(default_server: ServedProcess, soak: bool):
    count = 500 if soak else 60
    rng = random.Random(SEED)

    async def abort_them() -> None:
        limit = asyncio.Semaphore(32)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def one(text: str, moment: float | int) -> None:
                async with limit:
                    if isinstance(moment, int):
                        await stream(session, default_server, text, 64, read_chunks=moment)
                        return
                    attempt = asyncio.create_task(stream(session, default_server, text, 64))
                    await asyncio.wait([attempt], timeout=moment)
                    attempt.cancel()
                    await asyncio.gather(attempt, return_exceptions=True)

            moments = [rng.choice([rng.uniform(0, 1.5), rng.randrange(1, 8)]) for _ in range(count)]
            await asyncio.gather(*map(one, prompts(count), moments))

    asyncio.run(abort_them())
    wait_for(lambda: is_idle(default_server), timeout_s=5)
    assert len(run_together(default_server, ["Still here?"], max_tokens=3, at_once=1)[0].token_ids) == 3


def test_memory_stays_flat_over_many_requests(default_server: ServedProcess, soak: bool):
    """After a warm-up that fills the prefix cache's books, nothing grows with the requests."""
    count = 1000 if soak else 150
    texts = prompts(2 * count)
    run_together(default_server, texts[:count], max_tokens=2, at_once=32)
    before = resident_bytes(default_server)
    run_together(default_server, texts[count:], max_tokens=2, at_once=32)
    grown = resident_bytes(default_server) - before
    assert grown < 32 * 2**20, f"{grown / 2**20:.1f} MiB more after {count} requests"
    wait_for(lambda: is_idle(default_server))
