"""The mesh's side of a simulation: the production registry, cost model and placement, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from atomesh.mesh.cluster.registry import Commitment, Work, WorkerRegistry
from atomesh.mesh.cluster.snapshot import FRESH_S, WorkerSnapshot
from atomesh.mesh.placement.cost_model import CostModel
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts, Weights
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.placement import Unified
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.planner.simulator.event_loop import EventLoop
from atomesh.planner.simulator.indexes import FedIndex
from atomesh.planner.simulator.simulated_worker import SimulatedWorker
from atomesh.planner.simulator.trace_tokens import TraceTokens, hash_of_id
from atomesh.planner.simulator.workload import Arrival
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.frames import StepFrame
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec

if TYPE_CHECKING:
    from atomesh.protocol.worker import LoadReport

MODEL = "simulated"
HEARTBEAT_S = FRESH_S / 2
FIRST_TOKEN_ONLY = SamplingSpec(seed=0, max_tokens=1)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`delay_s` is a message's way between gateway and worker. `seed` is for policies that roll dice."""

    policy: str
    block_size: int
    delay_s: float
    seed: int
    weights: Weights


class SimulatedGateway:
    """Hands each arrival to a worker; `answered` hears of the time that its first token took.

    What a worker does not hold of a prompt it computes: simulated workers send each other nothing.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        loop: EventLoop,
        index: FedIndex,
        answered: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._index = index
        self._answered = answered
        self._dice = Random(settings.seed)  # noqa: S311
        self._policies = PolicySet(settings.policy)
        self._costs = CostModel()
        self._registry = WorkerRegistry(lambda _: None)
        self._workers: dict[str, SimulatedWorker] = {}
        self._loads: dict[str, LoadReport] = {}
        self._open: dict[str, tuple[float, Commitment]] = {}
        self._num_arrived = 0
        self._next_heartbeat = 0.0

    def connect(self, worker: SimulatedWorker) -> None:
        description = worker.description
        self._workers[description.worker_id] = worker
        self._loads[description.worker_id] = worker.scheduler.load()
        self._registry.expect(description.worker_id)
        self._registry.connected(description.worker_id, description, self._loop.now())
        self._costs.introduce(description.incarnation, description.model.name)
        self._index.join(description.incarnation)

    def arrive(self, arrival: Arrival) -> None:
        """A request is here: place it, count it, send it."""
        now, size = self._loop.now(), self._settings.block_size
        hashes = tuple(map(hash_of_id, arrival.block_ids[: arrival.num_tokens // size]))
        chosen, cached = self._place(arrival, hashes, now)
        work = Work(
            prefill_tokens=arrival.num_tokens - cached,
            sequences=1,
            prefill_quadratic=arrival.num_tokens**2 - cached**2,
        )
        request = GenerationRequest(
            request_id=str(self._num_arrived),
            prompt_token_ids=TraceTokens(arrival.block_ids, arrival.num_tokens, size).as_prompt(),
            sampling=FIRST_TOKEN_ONLY,
        )
        self._num_arrived += 1
        self._open[request.request_id] = now, self._registry.commit_work(chosen.address, work)
        self._index.predict(chosen.incarnation, hashes, now)
        self._loop.after(self._settings.delay_s, partial(self._workers[chosen.address].submit, request))

    def hear(self, worker: SimulatedWorker, frame: StepFrame) -> None:
        """A step of the worker has ended, and its frame sets out."""
        self._loop.after(self._settings.delay_s, partial(self._take_in, worker, frame))

    def _take_in(self, worker: SimulatedWorker, frame: StepFrame) -> None:
        now, incarnation = self._loop.now(), worker.description.incarnation
        self._loads[worker.description.worker_id] = frame.load
        self._registry.heard(worker.description.worker_id, frame.load, now)
        self._index.hear(incarnation, frame.kv_events)
        if frame.sample is not None:
            self._costs.observe_step(incarnation, frame.sample)
        for delta in frame.deltas:
            arrived_at, commitment = self._open.pop(delta.request_id)
            commitment.end()
            self._answered(now - arrived_at)

    def _place(
        self, arrival: Arrival, hashes: tuple[BlockHash, ...], now: float
    ) -> tuple[WorkerSnapshot, int]:
        """Who serves it, and how many of its tokens are believed to be cached there."""
        self._hear_of_all(now)
        facts = RequestFacts(
            num_prompt_tokens=arrival.num_tokens,
            output_tokens=FIRST_TOKEN_ONLY.max_tokens,
            block_hashes=hashes,
            block_size=self._settings.block_size,
        )
        inputs = PlacementInputs(
            request=facts,
            model=MODEL,
            cluster=self._registry.snapshot(),
            now=now,
            dice=self._dice,
            matches=self._index.match(hashes, now),
            costs=self._costs.view(),
            weights=self._settings.weights,
        )
        placement = place(inputs, self._policies).placement
        if not isinstance(placement, Unified):
            raise TypeError(f"{type(placement).__name__}: simulated workers do both prefill and decode")
        return placement.worker, placement.cached_tokens

    def _hear_of_all(self, now: float) -> None:
        """Heartbeats: none of these workers hangs, however long its steps are."""
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_S
        for address, load in self._loads.items():
            self._registry.heard(address, load, now)
