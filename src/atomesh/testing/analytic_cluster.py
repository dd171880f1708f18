"""Workers that compute one prompt after another and decode at a fixed pace, in virtual time.

What decides is the production registry, index, cost model and placement; a worker is a formula, so that a
thousand requests take a fraction of a second.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from atomesh.mesh.cluster.registry import Work, WorkerRegistry
from atomesh.mesh.kv_index.index import KVIndex
from atomesh.mesh.placement.cost_model import CostModel
from atomesh.mesh.placement.costs import StepCosts
from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts
from atomesh.mesh.placement.place import place
from atomesh.mesh.placement.placement import Unified
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.kv_events import BlocksStored
from atomesh.protocol.step_sample import StepSample
from atomesh.protocol.worker import LoadReport
from atomesh.testing.mesh_snapshots import MODEL, worker_description

BLOCK = 16  # tokens, as in mesh_snapshots
COSTS = StepCosts(5e-3, 0.2e-3, 0.0, 0.0, 0.5e-3, chunk_tokens=4096)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Whole blocks, each named together with all before it."""

    at_s: float
    blocks: tuple[bytes, ...]
    output_tokens: int = 20


@dataclass(slots=True)
class Served:
    """One request: where it went, its tokens found there, and the most that any worker had."""

    worker: str
    hit: int
    best: int
    num_tokens: int
    in_flight: dict[str, int]


@dataclass(slots=True)
class _Worker:
    blocks: set[bytes] = field(default_factory=set)
    free_at: float = 0.0


class AnalyticCluster:
    """`served` in the order of arrival."""

    def __init__(self, names: Iterable[str], policy: str, costs: StepCosts = COSTS) -> None:
        self.now = 0.0
        self.served: list[Served] = []
        self._policies = PolicySet(policy)
        self._costs = costs
        self._dice = random.Random(0)  # noqa: S311  # no secret
        self._registry = WorkerRegistry(lambda _: None)
        self._index = KVIndex()
        self._model = CostModel()
        self._workers: dict[str, _Worker] = {}
        self._events: list[tuple[float, int, object]] = []
        self._order = count()
        self._seen: set[bytes] = set()
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """A worker that holds nothing yet."""
        description = worker_description(name)
        self._workers[name] = _Worker()
        self._registry.expect(name)
        self._registry.connected(name, description, self.now)
        self._model.introduce(description.incarnation, MODEL)
        self._index.join(description.incarnation)

    def serve(self, prompt: Prompt) -> None:
        """Everything up to its arrival happens before it."""
        self._advance(prompt.at_s)
        hashes = tuple(map(BlockHash, prompt.blocks))
        name, predicted = self._place(prompt, hashes)
        worker, num_tokens = self._workers[name], BLOCK * len(hashes)
        hit = min(BLOCK * _run(prompt.blocks, worker.blocks), num_tokens - 1)
        best = min(BLOCK * _run(prompt.blocks, self._seen), num_tokens - 1)
        commitment = self._registry.commit_work(
            name, Work(num_tokens - predicted, 1, num_tokens**2 - predicted**2, 1, num_tokens)
        )
        self._index.predict(f"{name}-life", hashes, self.now)
        prefill_s = self._costs.prefill_s(num_tokens, hit)
        worker.free_at = max(worker.free_at, self.now) + prefill_s
        sample = StepSample(prefill_s, num_tokens - hit, num_tokens**2 - hit**2, 0, 0)

        def first_token() -> None:
            commitment.prefilled()
            worker.blocks.update(prompt.blocks)
            self._seen.update(prompt.blocks)
            self._index.apply(f"{name}-life", [BlocksStored(b"", list(prompt.blocks))])
            self._model.observe_step(f"{name}-life", sample)

        self._at(worker.free_at, first_token)
        self._at(worker.free_at + prompt.output_tokens * self._costs.decode_s(0, 4), commitment.end)
        in_flight = {one.address: one.in_flight for one in self._registry.snapshot().workers}
        self.served.append(Served(name, hit, best, num_tokens, in_flight))

    def _place(self, prompt: Prompt, hashes: tuple[BlockHash, ...]) -> tuple[str, int]:
        inputs = PlacementInputs(
            RequestFacts(
                BLOCK * len(hashes),
                output_tokens=prompt.output_tokens,
                block_hashes=hashes,
                block_size=BLOCK,
            ),
            MODEL,
            self._registry.snapshot(),
            self.now,
            self._dice,
            matches=self._index.match(hashes, self.now),
            costs=self._model.view(),
        )
        placement = place(inputs, self._policies).placement
        worker = placement.worker if isinstance(placement, Unified) else placement.prefill
        return worker.address, placement.cached_tokens

    def _advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heappop(self._events)
            event()  # type: ignore[operator]  # only callables are put there
        self.now = until
        for name in self._workers:
            self._registry.heard(name, LoadReport(), until)

    def _at(self, when: float, event: object) -> None:
        heappush(self._events, (when, next(self._order), event))


def _run(blocks: tuple[bytes, ...], held: set[bytes]) -> int:
    return next((depth for depth, block in enumerate(blocks) if block not in held), len(blocks))
