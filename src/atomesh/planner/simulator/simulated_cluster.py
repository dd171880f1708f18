"""A fleet of simulated workers behind a simulated gateway, and one run of a workload through it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from atomesh.engine.core.kv_cache_manager import KVCacheManager
from atomesh.engine.core.scheduler import Scheduler, SchedulerConfig
from atomesh.mesh.placement.costs import StepCosts
from atomesh.mesh.placement.inputs import Weights
from atomesh.planner.simulator.event_loop import EventLoop
from atomesh.planner.simulator.find_load import find_max_load
from atomesh.planner.simulator.indexes import EventIndex, SharedCacheIndex
from atomesh.planner.simulator.latency_model import DEFAULT_COST, find_costs
from atomesh.planner.simulator.measures import Measures, measure
from atomesh.planner.simulator.simulated_gateway import MODEL, GatewaySettings, SimulatedGateway
from atomesh.planner.simulator.simulated_worker import SimulatedWorker
from atomesh.planner.simulator.trace_tokens import TraceHasher
from atomesh.planner.simulator.workload import Arrival, Workload
from atomesh.protocol.worker import ModelDescription, WorkerDescription

KV_AWARE = "kv_aware"
IDEAL = "ideal_shared_cache"
"""No policy but a bound: all workers compute on one cache as large as all of theirs, without any transfer."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`ttft_limit_s` is what at least `promise` of all requests are to keep. See SchedulerConfig for the
    limits of a worker, and GatewaySettings for `delay_s`, `seed` and `weights`."""

    num_workers: int = 8
    blocks_per_worker: int = 10_000
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    costs: StepCosts = field(default_factory=partial(find_costs, DEFAULT_COST))
    ttft_limit_s: float = 5.0
    promise: float = 0.95
    delay_s: float = 0.001
    seed: int = 0
    weights: Weights = field(default_factory=Weights)


class SimulatedCluster:
    """For one run under one policy; IDEAL is one of them here."""

    def __init__(
        self, settings: FleetSettings, workload: Workload, policy: str, answered: Callable[[float], None]
    ) -> None:
        """`answered` hears of each request how many seconds its first token took."""
        self._settings = settings
        self._workload = workload
        self._loop = EventLoop()
        self._hasher = TraceHasher(workload.block_size)
        blocks = settings.blocks_per_worker * (settings.num_workers if policy == IDEAL else 1)
        self._scheduler_config = SchedulerConfig(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=workload.max_tokens + 1,
            block_size=workload.block_size,
            num_blocks=blocks,
        )
        shared = KVCacheManager(blocks, self._hasher, enable_prefix_cache=True) if policy == IDEAL else None
        gateway = GatewaySettings(
            policy=KV_AWARE if policy == IDEAL else policy,
            block_size=workload.block_size,
            delay_s=settings.delay_s,
            seed=settings.seed,
            weights=settings.weights,
        )
        index = EventIndex() if shared is None else SharedCacheIndex(shared)
        self._gateway = SimulatedGateway(gateway, self._loop, index, answered)
        self._workers = [self._worker(number, shared) for number in range(settings.num_workers)]
        for worker in self._workers:
            self._gateway.connect(worker)

    def run(self) -> None:
        """All of the workload, to its last answer or until `stop`."""
        self._await_next(iter(self._workload.arrivals))
        self._loop.run()

    def stop(self) -> None:
        self._loop.stop()

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were found in a cache."""
        loads = [worker.scheduler.load() for worker in self._workers]
        queries = sum(load.prefix_cache_queries for load in loads)
        return sum(load.prefix_cache_hits for load in loads) / queries if queries else 0.0

    @property
    def busy_s(self) -> list[float]:
        """How long each worker has computed."""
        return [worker.busy_s for worker in self._workers]

    def _await_next(self, arrivals: Iterator[Arrival]) -> None:
        arrival = next(arrivals, None)
        if arrival is not None:
            self._loop.at(arrival.at_s, partial(self._arrive, arrival, arrivals))

    def _arrive(self, arrival: Arrival, others: Iterator[Arrival]) -> None:
        self._await_next(others)
        self._gateway.arrive(arrival)

    def _worker(self, number: int, shared: KVCacheManager | None) -> SimulatedWorker:
        config = self._scheduler_config
        model = ModelDescription(
            name=MODEL,
            path="",
            architecture="",
            dtype="",
            vocab_size=0,
            max_model_len=config.max_model_len,
            eos_token_ids=(),
            block_size=config.block_size,
            num_blocks=config.num_blocks,
        )
        name = f"worker-{number}"
        description = WorkerDescription(
            worker_id=name,
            incarnation=name,
            pid=number,
            role="unified",
            model=model,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        scheduler = Scheduler(config, self._hasher, kv=shared)
        return SimulatedWorker(description, scheduler, self._settings.costs, self._loop, self._gateway.hear)


def simulate(settings: FleetSettings, workload: Workload, policy: str) -> Measures:
    """The workload as it stands, under one policy."""
    ttfts: list[float] = []
    cluster = SimulatedCluster(settings, workload, policy, ttfts.append)
    cluster.run()
    return measure(ttfts, cluster.hit_rate, cluster.busy_s, settings.ttft_limit_s)


def keeps_promise(settings: FleetSettings, workload: Workload, policy: str) -> bool:
    """Whether enough requests have their first token in time; the run ends as soon as that is settled."""
    most_late = math.floor((1.0 - settings.promise) * len(workload.arrivals))
    late = 0

    def answered(ttft_s: float) -> None:
        nonlocal late
        late += ttft_s > settings.ttft_limit_s
        if late > most_late:
            cluster.stop()

    cluster = SimulatedCluster(settings, workload, policy, answered)
    cluster.run()
    return late <= most_late


def find_policy_load(
    settings: FleetSettings,
    workload: Workload,
    policy: str,
    resolution: float = 0.01,
    guess: float | None = None,
) -> float:
    """The highest load at which the policy keeps the promise; 1.0 saturates the fleet without any cache.

    With a `guess`, such as another seed's result, the search begins with short steps from there.
    """

    def keeps(load: float) -> bool:
        scaled = workload.at_load(load, settings.costs, settings.num_workers)
        return keeps_promise(settings, scaled, policy)

    if guess is None:
        return find_max_load(keeps, resolution)
    return find_max_load(keeps, resolution, guess, 4 * resolution)
