"""The engines behind the gateways of benchmarks/routing.py, as vLLM servers, all in this process.

`python routing_mock.py PLAN.json` prints their ports; each line of its input makes it print what the engines
counted, and forget all. It ends with its input.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
import uvloop
from gateway_text import TextSide
from mock_connection import RequestConnection
from mock_dialect import RENDER, Asked, Dialect, EngineState, asked_decoder, probed, rendered_ids
from mock_http import STREAM_HEAD, MockRequest, whole_answer
from routing_engine import Change, EngineFigures, Job, SimulatedEngine

from atomesh.engine.foreign_events import ForeignWords
from atomesh.engine.recording_hasher import RecordingHasher
from atomesh.engine.zmq_publisher import PublisherAddress, ZmqPublisher
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, KVEvents

SALT_SECRET = b"nothing is kept secret here"


class RoutingPlan(msgspec.Struct, frozen=True):
    """`texts` are the users' words that will come, tokenised beforehand. `events` is where each engine
    publishes, in ZeroMQ's words. Block counts are of each engine."""

    model_path: str
    num_blocks: int
    block_size: int
    token_s: float
    texts: list[str]
    events: list[str]


class Prompts:
    """Text to token ids, as our gateway makes them."""

    def __init__(self, plan: RoutingPlan) -> None:
        self._side = TextSide(Path(plan.model_path))
        self._known = {text: self._encode(text) for text in plan.texts}
        self.dialect = Dialect([" ok"], self._side.tokenizer.encode(" ok")[:1], is_chat=True, has_ids=False)
        self.ids_dialect = Dialect(
            [" ok"], self._side.tokenizer.encode(" ok")[:1], is_chat=False, has_ids=True
        )

    def of(self, asked: Asked) -> list[int]:
        if isinstance(asked.prompt, list):
            return asked.prompt
        found = self._known.get(asked.text)
        return self._encode(asked.text) if found is None else found

    def _encode(self, text: str) -> list[int]:
        return self._side.template.encode([{"role": "user", "content": text}], self._side.tokenizer)


class MockWorker:
    """One engine, and who waits for it."""

    def __init__(self, plan: RoutingPlan, prompts: Prompts, events: str) -> None:
        self.started_at = time.time()
        self.prompts = prompts
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._hasher = RecordingHasher(SALT_SECRET, "mock", plan.block_size, 4 * plan.num_blocks)
        words = ForeignWords(self._hasher.recall, plan.block_size, plan.num_blocks)
        self._publisher = ZmqPublisher(PublisherAddress(events), words)
        self._sequence = 0
        self._due = 0.0
        self._engine: SimulatedEngine[BlockHash] = self._fresh()
        self._answers: list[HttpAnswer] = []

    def state(self) -> EngineState:
        used = self._engine.num_used_blocks / self._plan.num_blocks
        plan = self._plan
        return EngineState(
            self._engine.num_running, self._engine.num_waiting, used, plan.block_size, plan.num_blocks
        )

    def arrive(self, answer: "HttpAnswer") -> None:
        ids = self.prompts.of(answer.asked)
        chain = self._hasher.chain(ids, answer.asked.cache_salt)
        self._answers.append(answer)
        self._engine.arrive(Job(self._loop.time(), len(ids), chain))
        self._go_on()

    def forget(self) -> EngineFigures:
        """What was counted since the last time. Nobody may be waiting."""
        figures = self._engine.figures
        self._engine = self._fresh()
        self._publish([CacheCleared()])
        return figures

    def close(self) -> None:
        self._publisher.close()

    def _fresh(self) -> SimulatedEngine[BlockHash]:
        return SimulatedEngine(self._plan.num_blocks, self._plan.block_size, self._plan.token_s)

    def _go_on(self) -> None:
        seconds = self._engine.begin()
        if seconds is not None:
            self._due = self._loop.time() + seconds
            self._loop.call_at(self._due, self._finish)

    def _finish(self) -> None:
        now = self._loop.time()
        self._engine.figures.late_s += max(now - self._due, 0.0)
        cached = self._engine.cached_tokens
        change = self._engine.finish(now)
        self._answers.pop(0).give(cached)
        self._tell(change)
        self._go_on()

    def _tell(self, change: Change[BlockHash]) -> None:
        events: list[KVEvent] = []
        if change.stored:
            events.append(BlocksStored(change.parent or b"", list[bytes](change.stored)))
        if change.removed:
            events.append(BlocksRemoved(list[bytes](change.removed)))
        if events:
            self._publish(events)

    def _publish(self, events: list[KVEvent]) -> None:
        self._sequence += 1
        self._publisher.publish(KVEvents(self._sequence, 0, events), lambda: ())


class HttpAnswer:
    """One token, streamed or not."""

    def __init__(self, asked: Asked, prompts: Prompts, transport: asyncio.Transport) -> None:
        self.asked = asked
        self._dialect = prompts.ids_dialect if asked.return_token_ids else prompts.dialect
        self._transport = transport

    def give(self, cached: int) -> None:
        """`cached` of the prompt's tokens were not computed."""
        if self._transport.is_closing():
            return
        if not self.asked.stream:
            self._transport.write(whole_answer(self._dialect.whole(self.asked, cached, prompt=cached + 1)))
            return
        end = self._dialect.end(self.asked, cached, prompt=cached + 1)
        self._transport.write(STREAM_HEAD + self._dialect.token(0, is_last=True) + end)


class HttpWorker(RequestConnection):
    """One connection."""

    def __init__(self, worker: MockWorker) -> None:
        super().__init__()
        self._worker = worker

    def heed(self, request: MockRequest) -> None:
        worker = self._worker
        if request.method != "POST":
            found = probed(request.path, worker.started_at, worker.state())
            self.transport.write(whole_answer(b"{}", status=404) if found is None else whole_answer(*found))
            return
        asked = asked_decoder.decode(request.body)
        if request.path.endswith(RENDER):
            self.transport.write(whole_answer(rendered_ids(worker.prompts.of(asked))))
        else:
            worker.arrive(HttpAnswer(asked, worker.prompts, self.transport))


async def serve(plan: RoutingPlan) -> None:
    loop, prompts = asyncio.get_running_loop(), Prompts(plan)
    workers = [MockWorker(plan, prompts, events) for events in plan.events]
    ports = []
    for worker in workers:
        server = await loop.create_server(lambda one=worker: HttpWorker(one), "127.0.0.1", 0, backlog=1024)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps([asdict(worker.forget()) for worker in workers]), flush=True)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=RoutingPlan)))
