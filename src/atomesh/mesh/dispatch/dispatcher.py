"""The frontend's TokenService over a mesh: each request goes to one ready worker of its model."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

from atomesh.clock import Clock
from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.cluster.registry import WorkerRegistry, WorkerSnapshot
from atomesh.mesh.cluster.total_load import total_load
from atomesh.mesh.placement.least_loaded import least_loaded
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription

RETRY_AFTER_S = 2


class Backend(Protocol):
    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """As TokenService.generate, at one worker."""
        ...


class Dispatcher:
    """Serves one model. Implements `frontend.token_service.TokenService`."""

    def __init__(
        self, model: str, registry: WorkerRegistry, backends: Mapping[str, Backend], clock: Clock
    ) -> None:
        """`backends` by worker address, as in the registry."""
        self._model = model
        self._registry = registry
        self._backends = backends
        self._clock = clock
        self._is_closed = False

    def close(self) -> None:
        """Refuse new requests from now on; those that run go on."""
        self._is_closed = True

    def describe(self) -> ModelDescription:
        description = self._place().description
        if description is None:
            raise self._unavailable()
        return description.model

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[TokenDelta], None]:
        address = self._place().address
        self._registry.dispatched(address)
        try:
            async with aclosing(self._backends[address].generate(request)) as steps:
                async for deltas in steps:
                    yield deltas
        finally:
            self._registry.finished(address)

    def load(self) -> LoadReport:
        """The sum over the model's workers."""
        return total_load(worker.load for worker in self._registry.snapshot().ready(self._model))

    def _place(self) -> WorkerSnapshot:
        if self._is_closed:
            raise ServiceUnavailableError("the server is shutting down; try again later")
        worker = least_loaded(self._registry.snapshot().ready(self._model), self._clock.now())
        if worker is None:
            raise self._unavailable()
        return worker

    def _unavailable(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"no worker is ready to serve {self._model!r} yet; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )
