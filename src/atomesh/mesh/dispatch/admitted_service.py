"""A TokenService for one caller: the same tokens, once its turn has come, on its account, under its salt."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from msgspec.structs import replace

from atomesh.clock import Clock
from atomesh.frontend.token_service import Carry, TokenService
from atomesh.mesh.dispatch.admission import AdmissionGate
from atomesh.mesh.dispatch.visit import Caller, visiting
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription


class AdmittedService:
    """Implements `frontend.token_service.TokenService`."""

    def __init__(
        self, inner: TokenService, gate: AdmissionGate, clock: Clock, caller: Caller | None = None
    ) -> None:
        """Without a `caller` nothing is generated: nobody has said on whose account."""
        self._inner = inner
        self._gate = gate
        self._clock = clock
        self._caller = caller

    def on_account_of(self, caller: Caller) -> "AdmittedService":
        return AdmittedService(self._inner, self._gate, self._clock, caller)

    def describe(self) -> ModelDescription:
        return self._inner.describe()

    def load(self) -> LoadReport:
        """Who waits here is waiting too."""
        load = self._inner.load()
        return replace(load, waiting=load.waiting + self._gate.books.num_waiting)

    def loads(self) -> Mapping[str, LoadReport]:
        return self._inner.loads()

    async def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        async with (
            visiting(self._caller, request, self._gate, self._clock) as visit,
            aclosing(self._inner.generate(visit.request, carry and carry.heard_by(visit.owe))) as steps,
        ):
            async for deltas in steps:
                yield visit.see(deltas)
