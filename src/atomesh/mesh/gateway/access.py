"""What stands between clients and workers: the door, each tenant's account, and the line of each model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from prometheus_client.registry import Collector
from starlette.middleware import Middleware
from starlette.routing import Route

from atomesh.clock import Clock
from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.token_service import TokenService
from atomesh.mesh.admission.admission import QueueRules
from atomesh.mesh.cluster.cluster import Cluster
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.admission import AdmissionGate, GateOptions
from atomesh.mesh.dispatch.admitted_service import AdmittedService
from atomesh.mesh.dispatch.admitted_texts import AdmittedTexts
from atomesh.mesh.dispatch.text_dispatcher import TextDispatcher
from atomesh.mesh.dispatch.visit import Caller
from atomesh.mesh.gateway.tenant_guard import Models, TenantGuard
from atomesh.mesh.gateway.tenant_routes import TENANTS_PATH, TenantRoute
from atomesh.mesh.gateway.tenant_source import TenantOptions, TenantSource
from atomesh.mesh.placement.costs import Costs
from atomesh.observability.admission_collector import AdmissionCollector, LineReading
from atomesh.protocol.generation import GenerationRequest


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """`queue` bounds each model's line."""

    tenants: TenantOptions = field(default_factory=TenantOptions)
    queue: QueueRules = field(default_factory=QueueRules)


class Access:
    def __init__(self, options: AccessOptions, secret: bytes, registry: WorkerRegistry, clock: Clock) -> None:
        """Raises ConfigurationError when the tenants' file is not good."""
        self._options = options
        self._registry = registry
        self._clock = clock
        self._source = TenantSource(options.tenants, secret, clock)
        self._gates: dict[str, AdmissionGate] = {}

    def service(
        self,
        model: str,
        inner: TokenService,
        predict_ttft: Callable[[GenerationRequest], float | None],
        costs: Callable[[], Costs],
    ) -> AdmittedService:
        """`inner` behind the model's line; where keys are needed, for none but whom the guard names."""
        options = replace(self._gate_options(), predict_ttft=predict_ttft, costs=costs)
        gate = self._gate(model, self._registry, options)
        return AdmittedService(inner, gate, self._clock, self._anybody())

    def texts(self, inner: TextDispatcher) -> AdmittedTexts:
        """As `service`, of servers of whose speed nobody knows anything."""
        gate = self._gate(inner.model, inner.cluster, self._gate_options())
        return AdmittedTexts(inner, gate, self._clock, self._anybody())

    def forget(self, model: str) -> None:
        """Nobody serves it any more; whoever waits for it is told so."""
        if (gate := self._gates.pop(model, None)) is not None:
            gate.close(ServiceUnavailableError(f"the model {model[:200]!r} is not served in text any more"))

    def _gate(self, model: str, cluster: Cluster, options: GateOptions) -> AdmissionGate:
        gate = self._gates[model] = AdmissionGate(model, cluster, self._clock, options)
        return gate

    def _gate_options(self) -> GateOptions:
        directory = self._source.directory
        return GateOptions(self._options.queue, lambda: directory.are_several)

    def _anybody(self) -> Caller | None:
        """Whoever comes without a key, where none is needed."""
        directory = self._source.directory
        if directory.needs_key:
            return None
        seat = directory.seat_of(None)
        return Caller(seat.tenant, seat.limits)

    def guard(self, models: Models, open_paths: Iterable[str], open_prefixes: Iterable[str]) -> Middleware:
        """The layer around all routes; the open ones, of which ours is one, guard themselves."""
        paths = (*open_paths, TENANTS_PATH)
        return Middleware(TenantGuard, self._source.directory, models, self._clock, paths, open_prefixes)

    def route(self, admin_token: str) -> Route:
        gates = self._gates
        route = TenantRoute(
            self._source.directory, lambda: [gate.books for gate in gates.values()], self._clock
        )
        return route.behind(admin_token)

    def collector(self) -> Collector:
        return AdmissionCollector(
            lambda: [
                LineReading(
                    model,
                    gate.books.num_waiting,
                    {str(reason): count for reason, count in gate.books.refusals.items()},
                )
                for model, gate in self._gates.items()
            ]
        )

    def named_models(self) -> dict[str, str]:
        """Each model that a tenant may use by name, and where that is written."""
        return {
            name: f"the tenant {seat.tenant.name}"
            for seat in self._source.directory
            for name in seat.tenant.models or ()
        }

    def close(self) -> None:
        """Nobody comes in any more, and whoever waits is told so."""
        for gate in self._gates.values():
            gate.close(ServiceUnavailableError("the server is shutting down; try again later"))

    async def run(self) -> None:
        """Take in changes of the tenants' file, until cancelled."""
        await self._source.run()
