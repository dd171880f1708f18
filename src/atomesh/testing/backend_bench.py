"""A back end with a double of its engine, under one set of handles: what a contract is tested on."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from atomesh.clock import MonotonicClock
from atomesh.mesh.backends.backend import WorkerBackend
from atomesh.mesh.backends.context import BackendContext, LocalModel
from atomesh.mesh.backends.hand_offs import HandOffs
from atomesh.mesh.backends.make_backend import make_backend
from atomesh.mesh.backends.request_stream import RequestStream
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_servers import TextServers
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.protocol.generation import GenerationRequest, Leg, TokenDelta
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import Role
from atomesh.testing.fake_engine_server import FakeEngineServer, Speech
from atomesh.testing.fake_sglang_server import FakeSglangServer, Rooms
from atomesh.testing.fake_vllm_server import FakeVllmServer

MODEL = "lab/letters"
PATIENCE_S = 10.0
PAIR_ROLES: tuple[Role, ...] = ("prefill", "decode")
FILES = LocalModel(MODEL, "/models/letters", "LlamaForCausalLM", 1000, (2,))


def request_of(*prompt: int, n: int = 1, max_tokens: int = 8, **sampling: Any) -> GenerationRequest:
    """A seeded request; `sampling` are SamplingSpec's."""
    spec = SamplingSpec(seed=7, max_tokens=max_tokens, **sampling)
    return GenerationRequest(
        request_id=f"r{'-'.join(map(str, prompt))}", prompt_token_ids=list(prompt), sampling=spec, n=n
    )


async def read_all(stream: RequestStream) -> list[TokenDelta]:
    """To the end. Raises what the leg failed with."""
    found: list[TokenDelta] = []
    async with asyncio.timeout(PATIENCE_S):
        while (step := await stream.next()) is not None:
            found += step
    return found


class BackendBench(ABC):
    """`backend` runs while the bench does."""

    backend: WorkerBackend

    def __init__(self) -> None:
        self.registry = WorkerRegistry(lambda _: None)

    @abstractmethod
    def says(self, speech: Speech) -> None:
        """To every request from now on."""

    @abstractmethod
    def go_on(self) -> None:
        """Past HOLD."""

    @property
    @abstractmethod
    def num_asked(self) -> int:
        """Requests that the engine has seen."""

    @property
    @abstractmethod
    def num_aborted(self) -> int:
        """Requests that the engine was told to forget."""

    @abstractmethod
    async def die(self) -> None: ...

    @abstractmethod
    async def come_back(self) -> None: ...

    @property
    def worker(self) -> WorkerSnapshot:
        [worker] = self.registry.snapshot().workers
        return worker

    def submit(self, request: GenerationRequest, leg: Leg | None = None) -> RequestStream:
        return self.backend.submit(request, leg)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  the test waits for what it cannot be told of
                await asyncio.sleep(0.002)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["BackendBench"]:
        """The back end connected to its engine."""
        task = asyncio.create_task(self.backend.run())
        try:
            await self.until(lambda: self.worker.state == "ready")
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.die()


class HttpBench(BackendBench):
    """Around a started double of a foreign engine."""

    def __init__(
        self, server: FakeEngineServer, kind: str, role: Role = "unified", hand_offs: HandOffs | None = None
    ) -> None:
        super().__init__()
        self.server = server
        self.texts = TextServers()
        context = BackendContext(
            self.registry,
            MonotonicClock(),
            self.texts,
            hand_offs=HandOffs() if hand_offs is None else hand_offs,
            find_model=lambda name: FILES if name == MODEL else None,
        )
        self.backend = make_backend(BackendSpec(server.url, kind, role), context)

    def says(self, speech: Speech) -> None:
        self.server.speech = lambda _: speech

    def go_on(self) -> None:
        self.server.release()

    @property
    def num_asked(self) -> int:
        return len(self.server.bodies)

    @property
    def num_aborted(self) -> int:
        return self.server.left

    async def die(self) -> None:
        await self.server.stop()

    async def come_back(self) -> None:
        await self.server.start()


@asynccontextmanager
async def http_bench(kind: str) -> AsyncIterator[HttpBench]:
    """A back end of this kind and its double, connected."""
    server: FakeEngineServer = (FakeVllmServer if kind == "vllm" else FakeSglangServer)(MODEL)
    async with server:
        bench = HttpBench(server, kind)
        async with bench.running():
            yield bench


@asynccontextmanager
async def pair_of(kind: str) -> AsyncIterator[Sequence[HttpBench]]:
    """The back ends of a prefill and a decode engine of this kind, connected."""
    hand_offs, rooms = HandOffs(), Rooms()
    async with AsyncExitStack() as stack:
        benches: list[HttpBench] = []
        for role in PAIR_ROLES:
            server: FakeEngineServer = (
                FakeVllmServer(MODEL) if kind == "vllm" else FakeSglangServer(MODEL, role=role, rooms=rooms)
            )
            await stack.enter_async_context(server)
            bench = HttpBench(server, kind, role, hand_offs)
            await stack.enter_async_context(bench.running())
            benches.append(bench)
        yield benches
