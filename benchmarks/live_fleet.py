"""Workers of ours without models behind a gateway of ours, in this process, and a trace sent through them.

Engine thread, scheduler, KV manager, token plane, HTTP side and placement are those that serve; the executor
sleeps for as long as a step would take.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from atomesh.clock import MonotonicClock
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.engine.engine import Engine
from atomesh.mesh.dispatch.dispatcher import DispatchRules
from atomesh.mesh.gateway.app import GatewayOptions
from atomesh.mesh.placement.policies.rules import PolicyRule, PolicyRules
from atomesh.planner.simulator.latency_model import step_seconds
from atomesh.planner.simulator.measures import Measures, measure
from atomesh.planner.simulator.simulated_cluster import FleetSettings
from atomesh.planner.simulator.workload import Arrival, Workload
from atomesh.protocol.block_hash import model_hasher
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.gateway_server import GatewayServer, gateway_server
from atomesh.testing.paced_executor import PacedExecutor
from atomesh.testing.scripted_worker import scripted_worker

MODEL = "paced"
SECRET = b"p" * 32
BASE = 256  # of the byte tokenizer's ids
DIGITS = 4


@dataclass(frozen=True, slots=True)
class LiveWorker:
    engine: Engine
    executor: PacedExecutor


def make_worker(fleet: FleetSettings, workload: Workload) -> LiveWorker:
    description = ModelDescription(
        name=MODEL,
        path="",
        architecture="paced",
        dtype="float32",
        vocab_size=BASE,
        max_model_len=workload.max_tokens + 1,
        eos_token_ids=(),
        block_size=workload.block_size,
        num_blocks=fleet.blocks_per_worker,
    )
    limits = SchedulerConfig(
        max_num_seqs=fleet.max_num_seqs,
        max_num_batched_tokens=fleet.max_num_batched_tokens,
        max_model_len=description.max_model_len,
        block_size=description.block_size,
        num_blocks=description.num_blocks,
    )
    executor = PacedExecutor(partial(step_seconds, fleet.costs))
    scheduler = Scheduler(limits, model_hasher(SECRET, description))
    return LiveWorker(Engine(scheduler, executor, MonotonicClock(), description), executor)


async def replay(fleet: FleetSettings, workload: Workload, policy: str) -> Measures:
    """All of the workload, as it stands, under one policy; on workers whose caches are empty at first."""
    workers = [make_worker(fleet, workload) for _ in range(fleet.num_workers)]
    rules = DispatchRules(policies=PolicyRules((PolicyRule(prefill=policy),)))
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(prefix="atomesh-live-")))
        addresses = []
        for number, worker in enumerate(workers):
            told: dict[str, Any] = {
                "worker_id": f"worker-{number}",
                "incarnation": f"{number:032x}",
                "max_num_seqs": fleet.max_num_seqs,
                "max_num_batched_tokens": fleet.max_num_batched_tokens,
            }
            served = scripted_worker(worker.engine, f"unix:{home}/{number}", SECRET, **told)
            addresses.append((await stack.enter_async_context(served)).address)
        options = GatewayOptions(tuple(addresses), SECRET, "", drain_s=1.0, rules=rules)
        server = await stack.enter_async_context(gateway_server(options))
        await server.until(200)
        ttfts = await send_all(server, workload)
        hit_rate = hit_rate_of(workers)
    return measure(ttfts, hit_rate, [worker.executor.busy_s for worker in workers], fleet.ttft_limit_s)


def hit_rate_of(workers: Sequence[LiveWorker]) -> float:
    """The share of prompt tokens that were found in a cache."""
    loads = [worker.engine.load() for worker in workers]
    return sum(one.prefix_cache_hits for one in loads) / sum(one.prefix_cache_queries for one in loads)


async def send_all(server: GatewayServer, workload: Workload) -> list[float]:
    """Each at its time, whatever has come of those before it; seconds from then to its first token."""
    loop = asyncio.get_running_loop()
    bodies = [body_of(arrival, workload.block_size) for arrival in workload.arrivals]
    began = loop.time()

    async def send(arrival: Arrival, body: bytes) -> float:
        due = began + arrival.at_s
        await asyncio.sleep(max(0.0, due - loop.time()))
        headers = {"content-type": "application/json"}
        async with server.http.post("/v1/completions", data=body, headers=headers) as response:
            answer = await response.read()
        if response.status != 200:
            raise RuntimeError(f"the gateway answers {response.status}: {answer[:300]!r}")
        return loop.time() - due

    pairs = zip(workload.arrivals, bodies, strict=True)
    return await asyncio.gather(*(send(arrival, body) for arrival, body in pairs))


def body_of(arrival: Arrival, block_size: int) -> bytes:
    """The tokens of a block spell its id, as often as they fit; only the last one may be cut short."""
    tokens = [token for block in arrival.block_ids for token in spell(block, block_size)]
    request = {"model": MODEL, "prompt": tokens[: arrival.num_tokens], "max_tokens": 1, "ignore_eos": True}
    return json.dumps(request).encode()


def spell(block_id: int, block_size: int) -> list[int]:
    digits = [block_id // BASE**place % BASE for place in range(DIGITS)]
    return [digits[position % DIGITS] for position in range(block_size)]


def run_live(fleet: FleetSettings, workload: Workload, policy: str) -> tuple[Measures, float]:
    """And the processor seconds that it took, of gateway, workers and client together."""
    began = time.process_time()
    return asyncio.run(replay(fleet, workload, policy)), time.process_time() - began
