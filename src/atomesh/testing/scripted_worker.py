"""A worker whose engine answers by a script, in this process: real token plane and thread, no model."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from atomesh.clock import MonotonicClock
from atomesh.engine.core.batch import ScheduledBatch, StepResult
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.engine import Engine
from atomesh.engine.token_plane import Identity
from atomesh.engine.worker import Worker, WorkerOptions
from atomesh.protocol.address import parse_address
from atomesh.protocol.block_hash import BlockHasher
from atomesh.protocol.fault_points import FaultPoints, NoFaults
from atomesh.protocol.worker import ModelDescription, WorkerDescription
from atomesh.testing.scripted_executor import NextToken, ScriptedExecutor

VOCAB_SIZE = 1000
BLOCK_SIZE = 16
NUM_BLOCKS = 64


class PacedTokens:
    """Counts up from the length of the history; once paced, only as far as `allow` has paid."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._is_paced = False

    def pace(self) -> None:
        self._is_paced = True

    def allow(self, tokens: int) -> None:
        self._permits.release(tokens)

    def release(self) -> None:
        """No pace any more."""
        self._is_paced = False
        self._permits.release(1000)

    def __call__(self, history: Sequence[int], choice: int) -> int:
        if self._is_paced:
            self._permits.acquire()
        return (len(history) + choice) % VOCAB_SIZE


class SlowExecutor(ScriptedExecutor):
    """Each step takes so long, whatever is in it."""

    step_s = 0.0

    def execute(self, batch: ScheduledBatch) -> StepResult:
        time.sleep(self.step_s)
        return super().execute(batch)


def scripted_engine(next_token: NextToken, model: str = "scripted", step_s: float = 0.0) -> Engine:
    """64 blocks of 16 tokens, a vocabulary of 1,000, no end-of-sequence token, `step_s` for each step."""
    description = ModelDescription(
        name=model,
        path="",
        architecture="scripted",
        dtype="float32",
        vocab_size=VOCAB_SIZE,
        max_model_len=512,
        eos_token_ids=(),
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
    )
    config = SchedulerConfig(
        max_num_seqs=64,
        max_num_batched_tokens=256,
        max_model_len=512,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
    )
    scheduler = Scheduler(config, BlockHasher(b"scripted", model, BLOCK_SIZE))
    executor = SlowExecutor(next_token, NUM_BLOCKS, BLOCK_SIZE)
    executor.step_s = step_s
    return Engine(scheduler, executor, MonotonicClock(), description)


@dataclass(frozen=True, slots=True)
class ScriptedWorker:
    worker: Worker
    engine: Engine
    address: str


@asynccontextmanager
async def scripted_worker(
    engine: Engine,
    address: str,
    secret: bytes,
    drain_s: float = 0.0,
    faults: FaultPoints | None = None,
    **told: Any,
) -> AsyncIterator[ScriptedWorker]:
    """Serves `engine` at `address` (a TCP port of 0 is replaced by the real one) while the block runs.

    `told` are WorkerDescription's fields, as far as the worker is to say something else of itself.
    """
    plain = WorkerDescription(
        worker_id="scripted-0", incarnation="0" * 16, pid=0, role="unified", model=engine.description
    )
    description = replace(plain, **told)
    identity = Identity(secret, description)
    options = WorkerOptions(identity, parse_address(address), drain_s, faults or NoFaults())
    worker = Worker(engine, options, MonotonicClock())
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(worker.run(bound.set_result))
    await asyncio.wait((bound, task), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ScriptedWorker(worker, engine, bound.result())
    finally:
        worker.stop()
        await task
