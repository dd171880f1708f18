"""The gateway: the frontend's routes over a mesh of workers, behind keys, in one event loop."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from atomesh.clock import Clock
from atomesh.errors import ServiceUnavailableError
from atomesh.frontend.app import create_app
from atomesh.frontend.contract.document_route import DOCUMENT_PATH
from atomesh.frontend.contract.told_route import told
from atomesh.frontend.options import FrontendOptions
from atomesh.frontend.token_service import TokenService
from atomesh.mesh.backends.atom import AtomBackend
from atomesh.mesh.backends.context import BackendContext, LocalModel
from atomesh.mesh.backends.knowledge import Knowledge
from atomesh.mesh.backends.make_backend import make_backend
from atomesh.mesh.backends.pool import BackendPool
from atomesh.mesh.backends.spec import BackendSpec
from atomesh.mesh.backends.text_servers import TextServers
from atomesh.mesh.backends.tireless import tirelessly
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.dispatch.dispatcher import DEFAULT_RULES, Dispatcher, DispatchRules
from atomesh.mesh.dispatch.shared import share
from atomesh.mesh.dispatch.text_dispatcher import TextDispatcher
from atomesh.mesh.gateway.access import Access, AccessOptions
from atomesh.mesh.gateway.admin_routes import ADMIN_PATHS, ADMIN_PREFIXES, AdminRoutes
from atomesh.mesh.gateway.cors import Cors
from atomesh.mesh.gateway.discovery import Discovery, Source
from atomesh.mesh.gateway.drain import SHUTTING_DOWN, DrainLayer, RunningAnswers
from atomesh.mesh.gateway.explain_routes import EXPLAIN_PREFIX, ExplainRoute
from atomesh.mesh.gateway.http_server import HttpServer
from atomesh.mesh.gateway.index_reading import read_index
from atomesh.mesh.gateway.observability import Observability
from atomesh.mesh.gateway.operations import GATEWAY_OPERATIONS
from atomesh.mesh.gateway.profile_routes import PROFILE_PATHS, ProfileRoutes
from atomesh.mesh.gateway.rebalancer import REBALANCE_PATH, Mode, Rebalancer
from atomesh.mesh.gateway.registration_routes import RegistrationRoutes
from atomesh.mesh.gateway.served_models import ServedModels, TextSide
from atomesh.mesh.gateway.text_offers import OperatorsNames, TextOffers
from atomesh.mesh.gateway.text_relay import RelayFace, TextRelay
from atomesh.mesh.gateway.tls import TlsFiles, server_context
from atomesh.mesh.gateway.unserved_names import UnservedNames, aliased_models
from atomesh.observability.kv_index_collector import KVIndexCollector
from atomesh.observability.mesh_collector import MeshCollector, MeshReading
from atomesh.observability.metrics import FrontendMetrics
from atomesh.observability.placement_metrics import PlacementMetrics
from atomesh.observability.relay_collector import RelayCollector, RelayReading
from atomesh.protocol.registration import PATH as REGISTRATION_PATH
from atomesh.protocol.worker import ModelDescription, WorkerDescription

_log = logging.getLogger(__name__)

OPEN_PATHS = ("/health", "/live", "/ready", "/ping", "/version", "/metrics", DOCUMENT_PATH)
CUT_S = 3.0  # from the last frame to the closed connection


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """`drain_s`: how long answers may go on after `stop`; then they end with an error.

    `enable_faults`: the operator may break the workers on purpose. `find_model`: as BackendContext's, for
    `engines`, those that are not ours.
    """

    workers: tuple[str, ...]
    secret: bytes
    admin_token: str
    access: AccessOptions = field(default_factory=AccessOptions)
    tls: TlsFiles | None = None
    cors_origins: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = ()
    drain_s: float = 20.0
    frontend: FrontendOptions = field(default_factory=FrontendOptions)
    rules: DispatchRules = DEFAULT_RULES
    enable_faults: bool = False
    observability: Observability = field(default_factory=Observability)
    engines: tuple[BackendSpec, ...] = ()
    find_model: Callable[[str], LocalModel | None] = lambda _: None
    discovery: tuple[Source, ...] = ()
    rebalance: Mode = "off"


class Gateway:
    """`run` serves until `stop`. A model whose text side cannot be loaded is not offered.

    Raises ConfigurationError at once when the tenants' or the TLS files are not good.
    """

    def __init__(
        self, options: GatewayOptions, load_text: Callable[[ModelDescription], TextSide], clock: Clock
    ) -> None:
        self._options = options
        self._clock = clock
        self._dispatchers: list[Dispatcher | TextDispatcher] = []
        self._text_dispatchers: dict[str, TextDispatcher] = {}
        self._models = ServedModels(load_text, self._make_service, options.model_aliases)
        self.registry = WorkerRegistry(self._hear)
        self._offers = TextOffers(
            self.registry, clock, _operators_names(options), self._offer_text, self._withdraw_text
        )
        self._access = Access(options.access, options.secret, self.registry, clock)
        aliased = aliased_models(options.model_aliases)
        self._unserved = UnservedNames(lambda: self._access.named_models() | aliased, self._models, clock)
        self._errors = PlacementMetrics()
        self._shared = share(options.secret, self._errors, options.observability.of_dispatch())
        self._explain = ExplainRoute(self._shared.explanations)
        knowledge = self._shared.knowledge
        self._worker_refusals: Counter[str] = Counter()
        self._backends = BackendPool(
            lambda address: AtomBackend(
                address, options.secret, self.registry, clock, knowledge, self._worker_refusals
            ),
            self.registry,
        )
        self._registrations = RegistrationRoutes(
            options.secret, self._backends, self.registry, clock, self._worker_refusals
        )
        for address in options.workers:
            self._backends.add(address)
        self._discovery = Discovery(self._backends, options.workers, options.discovery)
        self._rebalancer = Rebalancer(options.rebalance, self._backends, self.registry, clock)
        self._texts = TextServers()
        context = self._make_context(knowledge)
        for spec in options.engines:
            self._backends.join(make_backend(spec, context))
        tls = None if options.tls is None else server_context(options.tls)
        self._answers = RunningAnswers()
        self._metrics = self._make_metrics()
        self._server = HttpServer(self._make_app(), tls)
        self._stopping = asyncio.Event()
        self._abandoned = asyncio.Event()

    @property
    def num_running(self) -> int:
        """Requests that are being answered; 0 once told to stop."""
        return 0 if self._stopping.is_set() else self._answers.num

    def stop(self) -> None:
        """Finish what runs, within `drain_s`; a second call ends it now. To be called in the event loop."""
        if self._stopping.is_set():
            self._abandoned.set()
        self._stopping.set()

    async def run(self, listener: socket.socket) -> None:
        """Serve HTTP on a listening socket, which is closed in the end."""
        background = [
            asyncio.create_task(work)
            for work in (
                self._backends.run(),
                tirelessly("the loading of models", self._models.run),
                tirelessly("the look at the tenants", self._access.run),
                tirelessly("the look at names that no model has", self._unserved.run),
                tirelessly("discovery", self._discovery.run),
                tirelessly("the look at leases", self._registrations.run),
                tirelessly("the look at models in text", self._offers.run),
                tirelessly("the rebalancer", self._rebalancer.run),
                self._end(),
            )
        ]
        server = asyncio.create_task(self._server.run_on(listener))
        try:
            done, _ = await asyncio.wait((server, *background), return_when=asyncio.FIRST_COMPLETED)
            if server not in done:  # such work ends only by an error of ours: what others say is survived
                self._server.stop(within_s=CUT_S)
            await server
            for task in done - {server}:
                task.result()
        finally:
            for task in (server, *background):
                task.cancel()
            await asyncio.gather(server, *background, return_exceptions=True)
            listener.close()
            self._models.close()

    async def _end(self) -> None:
        """Once told to stop: refuse what comes, wait, close the door, and end what is still running."""
        await self._stopping.wait()
        for dispatcher in self._dispatchers:
            dispatcher.close()
        self._access.close()
        self._answers.close()
        await self._drain()
        self._server.stop(within_s=CUT_S)
        while True:
            self._backends.end_all(SHUTTING_DOWN)
            self._texts.end_all(ServiceUnavailableError(SHUTTING_DOWN))
            await asyncio.sleep(0.1)

    async def _drain(self) -> None:
        """Returns when the last answer has ended, the time is over, or nobody wants to wait any more."""
        ends = [asyncio.create_task(end) for end in (self._answers.until_over(), self._abandoned.wait())]
        try:
            done, _ = await asyncio.wait(
                ends, timeout=self._options.drain_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for end in ends:
                end.cancel()
        if not done:
            _log.warning("requests still running after %s s are ended", self._options.drain_s)

    def _make_context(self, knowledge: Knowledge) -> BackendContext:
        return BackendContext(
            self.registry,
            self._clock,
            self._texts,
            knowledge,
            find_model=self._options.find_model,
            secret=self._options.secret,
            refusals=self._worker_refusals,
        )

    def _make_app(self) -> ASGIApp:
        options, metrics = self._options, self._metrics
        guarded_apart = (*ADMIN_PREFIXES, EXPLAIN_PREFIX)
        open_paths = (*OPEN_PATHS, *ADMIN_PATHS, *PROFILE_PATHS, REGISTRATION_PATH, REBALANCE_PATH)
        layers = [
            Middleware(DrainLayer, self._answers),
            self._access.guard(self._models, open_paths, guarded_apart),
            Middleware(TextRelay, RelayFace(self._models, options.frontend, metrics, self._clock)),
        ]
        if options.cors_origins:
            layers.insert(0, Middleware(Cors, options.cors_origins))
        app = create_app(
            self._models,
            replace(options.frontend, explain=self._explain.of_requests),
            routes=told(self._own_routes(), GATEWAY_OPERATIONS),
            middleware=layers,
            metrics=metrics,
            clock=self._clock,
        )
        return options.observability.around(app, self._clock)

    def _own_routes(self) -> list[Route]:
        token = self._options.admin_token
        admin = AdminRoutes(
            self.registry,
            self._backends,
            self._shared.office,
            self._options.enable_faults,
            self._clock,
            lambda: self._models.failures,
        )
        return [
            *admin.behind(token),
            *ProfileRoutes(self.registry, self._backends, self._clock).behind(token),
            self._access.route(token),
            self._explain.behind(token),
            self._rebalancer.behind(token),
            *self._registrations.routes(),
        ]

    def _make_metrics(self) -> FrontendMetrics:
        metrics = FrontendMetrics()
        for collector in (
            RelayCollector(self._read_relays, self._read_text_breakers),
            MeshCollector(self._read),
            KVIndexCollector(lambda: read_index(self._shared.knowledge.index, self.registry)),
            self._access.collector(),
            self._rebalancer,
            *self._errors.collectors,
        ):
            metrics.registry.register(collector)
        return metrics

    def _read(self) -> MeshReading:
        dispatchers, now = self._dispatchers, self._clock.now()
        return MeshReading(
            workers=Counter(worker.shown_state(now) for worker in self.registry.snapshot().workers),
            retries={one.model: one.counts["retries"] for one in dispatchers},
            migrations={one.model: one.counts["migrations"] for one in dispatchers},
            tickets_minted=self._shared.office.minted,
            tickets_open=self._shared.office.num_open,
            retries_refused=self._shared.retries.refused,
            prompts_barred=self._shared.quarantine.barred,
            barred_refused=self._shared.quarantine.refused,
            worker_refusals=self._worker_refusals,
        )

    def _read_relays(self) -> list[RelayReading]:
        return [RelayReading(one.model, one.running, one.outcomes) for one in self._text_dispatchers.values()]

    def _read_text_breakers(self) -> dict[str, bool]:
        now = self._clock.now()
        workers = self.registry.snapshot().workers
        told = ((one.description, one.breaker.state(now) != "closed") for one in workers)
        return {text.worker_id: is_open for text, is_open in told if text is not None and text.texts}

    def _hear(self, worker: WorkerDescription) -> None:
        """A worker has said hello."""
        if worker.texts:
            self._offers.hear(worker)
        elif self._offers.keep(worker.model.name):
            self._models.hear(worker)

    def _offer_text(self, model: str) -> None:
        self._models.relay(model, self._make_text_service)

    def _withdraw_text(self, model: str) -> None:
        self._models.withdraw(model)
        self._dispatchers.remove(self._text_dispatchers.pop(model))
        self._access.forget(model)
        self._metrics.forget(model)

    def _make_text_service(self, model: str) -> TokenService:
        policies = self._options.rules.policies
        dispatcher = TextDispatcher(model, self.registry, self._texts, self._clock, policies, self._shared)
        self._dispatchers.append(dispatcher)
        self._text_dispatchers[model] = dispatcher
        return self._access.texts(dispatcher)

    def _make_service(self, model: str) -> TokenService:
        rules = self._options.rules
        dispatcher = Dispatcher(model, self.registry, self._backends, self._clock, rules, self._shared)
        self._dispatchers.append(dispatcher)
        costs = self._shared.knowledge.costs.view
        return self._access.service(model, dispatcher, dispatcher.earliest_first_token_s, costs)


def _operators_names(options: GatewayOptions) -> OperatorsNames:
    said = [spec.model for spec in options.engines if spec.kind == "openai" and spec.model]
    return OperatorsNames(said, options.model_aliases)
