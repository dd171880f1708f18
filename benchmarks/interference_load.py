"""The load of benchmarks/interference.py: streams that run steadily, and long prompts that arrive among them.

Times are seconds on one monotonic clock, taken when the bytes arrive.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from atomesh.bench.completion_stream import DONE
from atomesh.bench.failures import RequestFailed
from atomesh.bench.sse import EventDecoder, ServerEvent

SILENCE_S = 600.0  # of a server that is taken for dead
SETTLE_S = 1.0  # after the streams' first tokens; the tokens of that time are not counted


@dataclass(slots=True)
class Answer:
    """One streamed answer as it comes; `token_at` has a moment for each token."""

    prompt_tokens: int
    sent_at: float = 0.0
    token_at: list[float] = field(default_factory=list)
    serving_path: str = "unknown"
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ttft_s(self) -> float:
        return self.token_at[0] - self.sent_at


@dataclass(frozen=True, slots=True)
class Load:
    """What every shape is given. `lengths` are those of the long prompts, in tokens, in order of arrival."""

    num_streams: int
    stream_prompt: int
    stream_tokens: int
    lengths: tuple[int, ...]
    answer_tokens: int
    idle_s: float
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Contention:
    """Streams between `begun_at` and `ended_at`, and the prompts that came in between."""

    streams: list[Answer]
    prompts: list[Answer]
    begun_at: float
    ended_at: float
    generator_share: float  # of a core, taken by the load generator


class _Choice(msgspec.Struct):
    token_ids: list[int] = []


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None
    serving_path: str | None = None


_decoder = msgspec.json.Decoder(_Chunk)


class Client:
    """Asks for answers of a given length, greedily, and notes each token.

    Raises RequestFailed on any fault.
    """

    def __init__(self, session: aiohttp.ClientSession, model: str, vocab_size: int) -> None:
        self._session = session
        self._model = model
        self._tokens = range(vocab_size // 4, vocab_size)  # most special ones lie below
        self._rng = random.Random(0)  # noqa: S311

    async def ask(self, prompt_tokens: int, max_tokens: int) -> Answer:
        answer = Answer(prompt_tokens)
        await self.follow(answer, max_tokens)
        return answer

    async def follow(self, answer: Answer, max_tokens: int) -> None:
        """Send a new random prompt and fill in `answer`, to its end."""
        body = self._body(answer.prompt_tokens, max_tokens)
        answer.sent_at = time.perf_counter()
        headers = {"content-type": "application/json", "x-explain": "1"}
        async with self._session.post("/v1/completions", data=body, headers=headers) as response:
            if response.status != 200:
                raise RequestFailed(f"HTTP {response.status}", (await response.text())[:1000])
            answer.serving_path = response.headers.get("x-serving-path", answer.serving_path)
            await self._read(answer, response.content)
        if len(answer.token_at) != max_tokens:
            raise RequestFailed("wrong length", f"{len(answer.token_at)} tokens came, not {max_tokens}")

    async def _read(self, answer: Answer, content: aiohttp.StreamReader) -> None:
        events = EventDecoder()
        is_done = False
        async for data in content.iter_any():
            now = time.perf_counter()
            for event in events.feed(data):
                is_done |= event.data == DONE
                if not is_done:
                    _take(answer, event, now)
        if not is_done:
            raise RequestFailed("cut stream", f"the stream ended without {DONE}")

    def _body(self, prompt_tokens: int, max_tokens: int) -> bytes:
        return msgspec.json.encode(
            {
                "model": self._model,
                "prompt": self._rng.choices(self._tokens, k=prompt_tokens),
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,  # a chunk for every token, also for one without text
            }
        )


def _take(answer: Answer, event: ServerEvent, now: float) -> None:
    chunk = _decoder.decode(event.data)
    if chunk.error is not None:
        raise RequestFailed("error frame", str(chunk.error))
    answer.serving_path = chunk.serving_path or answer.serving_path
    for choice in chunk.choices:
        answer.token_at += [now] * len(choice.token_ids)
    if answer.token_at:
        answer.has_begun.set()


@asynccontextmanager
async def connect(url: str, model: str, vocab_size: int) -> AsyncIterator[Client]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE_S)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        yield Client(session, model, vocab_size)


async def warm_up(client: Client, load: Load) -> None:
    """One of each kind, in no figure."""
    await client.ask(load.stream_prompt, load.answer_tokens)
    await client.ask(min(load.lengths), load.answer_tokens)


async def alone(client: Client, load: Load) -> list[Answer]:
    """The long prompts one after the other, on a server with nothing else to do."""
    return [await client.ask(length, load.answer_tokens) for length in load.lengths]


async def contend(client: Client, load: Load, interval_s: float) -> Contention:
    """Streams all the time; idle, then a long prompt every `interval_s` whatever the server does, then idle.

    Raises ExceptionGroup of RequestFailed when any of them fails.
    """
    streams = [Answer(load.stream_prompt) for _ in range(load.num_streams)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.follow(stream, load.stream_tokens)) for stream in streams]
        for stream in streams:
            await stream.has_begun.wait()
        await asyncio.sleep(SETTLE_S)
        begun_at, spent_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(load.idle_s)
        prompts = await _arrive(client, load, interval_s)
        await asyncio.sleep(load.idle_s)
        ended_at, spent_s = time.perf_counter(), time.process_time() - spent_s
        _require_running(tasks)
        for task in tasks:
            task.cancel()
    return Contention(streams, prompts, begun_at, ended_at, spent_s / (ended_at - begun_at))


async def _arrive(client: Client, load: Load, interval_s: float) -> list[Answer]:
    async with asyncio.TaskGroup() as group:
        tasks = []
        for length in load.lengths:
            tasks.append(group.create_task(client.ask(length, load.answer_tokens)))
            await asyncio.sleep(interval_s)
    return [task.result() for task in tasks]


def _require_running(tasks: Sequence["asyncio.Task[None]"]) -> None:
    if any(task.done() for task in tasks):
        raise RequestFailed("short stream", "a stream ended before the prompts: raise --stream-tokens")
