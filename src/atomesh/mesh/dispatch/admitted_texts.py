"""A TextDispatcher for one caller: the same answers, once its turn has come, on its account."""

from collections.abc import AsyncGenerator, Mapping
from typing import NoReturn

from msgspec.structs import replace

from atomesh.clock import Clock
from atomesh.errors import InvalidRequestError
from atomesh.frontend.token_service import Carry
from atomesh.mesh.dispatch.admission import AdmissionGate
from atomesh.mesh.dispatch.text_ask import TextAsk
from atomesh.mesh.dispatch.text_dispatcher import TextDispatcher
from atomesh.mesh.dispatch.visit import Caller, visiting
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription


class AdmittedTexts:
    """Implements `frontend.token_service.TokenService` as far as there is anything without tokens."""

    def __init__(
        self, inner: TextDispatcher, gate: AdmissionGate, clock: Clock, caller: Caller | None = None
    ) -> None:
        """Without a `caller` nothing is answered: nobody has said on whose account."""
        self._inner = inner
        self._gate = gate
        self._clock = clock
        self._caller = caller

    def on_account_of(self, caller: Caller) -> "AdmittedTexts":
        return AdmittedTexts(self._inner, self._gate, self._clock, caller)

    @property
    def may_set_priority(self) -> bool:
        return self._caller is not None and self._caller.tenant.may_set_priority

    def describe(self) -> ModelDescription:
        return self._inner.describe()

    def load(self) -> LoadReport:
        return replace(self._inner.load(), waiting=self._gate.books.num_waiting)

    def loads(self) -> Mapping[str, LoadReport]:
        """None of them says."""
        return {}

    def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        _refuse()

    async def relay(self, request: GenerationRequest, ask: TextAsk) -> None:
        """As TextDispatcher.relay, on the caller's account: by a guess, then by what the answer says."""
        async with visiting(self._caller, request, self._gate, self._clock) as visit:
            try:
                await self._inner.relay(visit.request, ask)
            finally:
                usage = ask.usage
                visit.settle(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _refuse() -> NoReturn:
    raise InvalidRequestError(
        "this model's tokens are its own server's; ask for chats, completions or responses", param="model"
    )
