"""The frontend's TokenService over a mesh: each request's flow through the workers of its model."""

import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from atomesh.clock import Clock
from atomesh.frontend.token_service import Carry
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.cluster.total_load import total_load
from atomesh.mesh.dispatch.drive import Drive
from atomesh.mesh.dispatch.legs import Backend, Legs
from atomesh.mesh.dispatch.placer import MeshRules, Placer
from atomesh.mesh.dispatch.shared import Shared, share
from atomesh.mesh.placement.placement import PlacementRules
from atomesh.mesh.placement.policies.rules import PolicyRules
from atomesh.mesh.request_flow.flow import FlowRules, request_flow
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """What an operator may set of how requests are spread over workers."""

    placement: PlacementRules = field(default_factory=PlacementRules)
    flow: FlowRules = field(default_factory=FlowRules)
    policies: PolicyRules = field(default_factory=PolicyRules)


DEFAULT_RULES = DispatchRules()


class Dispatcher:
    """Serves one model. Implements `frontend.token_service.TokenService`.

    `counts` holds how often a request was sent once more before its first token, `retries`, and after it,
    `migrations`.
    """

    def __init__(
        self,
        model: str,
        registry: WorkerRegistry,
        backends: Mapping[str, Backend],
        clock: Clock,
        rules: DispatchRules = DEFAULT_RULES,
        shared: Shared | None = None,
    ) -> None:
        """`backends` by worker address, as in the registry.

        Without what is `shared` no worker heeds a ticket, and nothing is known of what any of them holds.
        """
        self.counts: Counter[str] = Counter()
        self.model = model
        self._registry = registry
        self._clock = clock
        self._flow_rules = rules.flow
        self._shared = shared or share(secrets.token_bytes(32))
        observation = self._shared.observation
        self._backends = observation.backends(backends, registry)
        self._placer = Placer(
            model, registry, clock, MeshRules(rules.placement, rules.policies), self._shared
        )
        self._decider = observation.around(self._placer)

    def close(self) -> None:
        """Refuse new requests from now on; those that run go on."""
        self._placer.close()

    def describe(self) -> ModelDescription:
        return self._placer.describe()

    def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        legs = Legs(self._registry, self._backends, self._clock)
        account = self._shared.explanations.open(request.request_id, self.model, request.n)
        drive = Drive(legs, self._decider, self._shared.office, self.counts, account, carry)
        return drive.run(request_flow(request, self._flow_rules))

    def earliest_first_token_s(self, request: GenerationRequest) -> float | None:
        """How soon a request's first token could be there, by what is known of the workers."""
        return self._placer.earliest_first_token_s(request)

    def load(self) -> LoadReport:
        """The sum over the model's workers."""
        return total_load(worker.load for worker in self._workers)

    def loads(self) -> dict[str, LoadReport]:
        """By worker id; one that is lost has nothing."""
        told = ((worker.description, worker.load) for worker in self._workers if worker.state != "lost")
        return {description.worker_id: load for description, load in told if description is not None}

    @property
    def _workers(self) -> list[WorkerSnapshot]:
        workers = self._registry.snapshot().workers
        return [worker for worker in workers if worker.model_name == self.model]
