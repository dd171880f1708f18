"""One request's time between the door and the end of its answer, and what is charged for it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from atomesh.clock import Clock
from atomesh.errors import AuthenticationError
from atomesh.mesh.admission.cost import CostMeter
from atomesh.mesh.admission.fair_queue import Waiting
from atomesh.mesh.admission.rate_limits import RateLimits
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.dispatch.admission import AdmissionGate
from atomesh.protocol.generation import GenerationRequest, TokenDelta

CHARGED_DELTAS = 8  # at once: nobody's share changes sooner than that


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose account a request runs; `deadline_at` is when it is of no more use, on the gateway's clock."""

    tenant: Tenant
    limits: RateLimits
    deadline_at: float | None = None


class Visit:
    """enter, `begin` when its turn has come, and `leave` in every case."""

    def __init__(self, caller: Caller, request: GenerationRequest, gate: AdmissionGate, clock: Clock) -> None:
        tenant = caller.tenant
        self.request = replace(
            request,
            cache_salt=tenant.salt(request.cache_salt),
            priority=tenant.engine_priority(request.priority),
        )
        self.entry = Waiting(
            tenant=tenant,
            prompt_tokens=len(request.prompt_token_ids),
            choices=request.n,
            arrived_at=clock.now(),
            priority=request.priority,
            deadline_at=caller.deadline_at,
        )
        self._limits = caller.limits
        self._gate = gate
        self._clock = clock
        self._meter: CostMeter | None = None
        self._waited_s = 0.0
        self._has_answer = False
        self._uncharged: list[TokenDelta] = []

    def enter(self) -> None:
        """Raises RateLimitError or ServiceUnavailableError, and then nothing has been charged."""
        now = self._clock.now()
        self._limits.check_prompt(self.entry.prompt_tokens, now)
        self._gate.enqueue(self.entry, self.request)
        self._limits.spend_tokens(self.entry.prompt_tokens, now)

    def begin(self, waited_s: float) -> None:
        now = self._clock.now()
        self._waited_s = waited_s
        self._meter = CostMeter(self.entry.prompt_tokens, now, self._gate.tariff())
        self._gate.charge(self.entry, self._meter.start())

    def see(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        """One step's deltas, or several steps', as the client shall see them."""
        self._uncharged += deltas
        if len(self._uncharged) >= CHARGED_DELTAS or not self._has_answer:
            self._charge()
        if not self._has_answer:  # its prompt has been computed: there may be room for another
            self._has_answer = True
            self._gate.look()
        return [delta if delta.timings is None else self._with_wait(delta) for delta in deltas]

    def owe(self, deltas: Sequence[TokenDelta]) -> None:
        """The client has these as well; they are charged when it leaves."""
        self._uncharged += deltas

    def _charge(self) -> None:
        """What the steps since the last time have brought."""
        now, deltas = self._clock.now(), self._uncharged
        self._uncharged = []
        if self._meter is not None:
            self._gate.charge(self.entry, self._meter.take(deltas, now))
        self._limits.spend_tokens(sum([len(delta.token_ids) for delta in deltas]), now)

    def settle(self, prompt_tokens: int | None, cached_tokens: int, output_tokens: int) -> None:
        """All at once, of an answer whose counts are only known in the end; what was guessed too high is
        given back. None for `prompt_tokens` leaves it at the guess."""
        guessed = self.entry.prompt_tokens
        prompt = guessed if prompt_tokens is None else prompt_tokens
        self._limits.spend_tokens(prompt - guessed + output_tokens, self._clock.now())
        if self._meter is not None:
            self._gate.charge(self.entry, self._meter.settle(prompt, cached_tokens, output_tokens))

    def leave(self) -> None:
        self._charge()
        rest = 0.0 if self._meter is None else self._meter.end(self._clock.now())
        self._gate.leave(self.entry, rest)

    def _with_wait(self, delta: TokenDelta) -> TokenDelta:
        """The time in line is time in the queue."""
        if delta.timings is None:
            return delta
        queue_s = delta.timings.queue_s + self._waited_s
        return replace(delta, timings=replace(delta.timings, queue_s=queue_s))


@asynccontextmanager
async def visiting(
    caller: Caller | None, request: GenerationRequest, gate: AdmissionGate, clock: Clock
) -> AsyncIterator[Visit]:
    """Inside, it is the request's turn. Raises what keeps it out: AuthenticationError without a `caller`."""
    if caller is None:
        raise AuthenticationError("no API key was given; send it as `Authorization: Bearer KEY`")
    visit = Visit(caller, request, gate, clock)
    visit.enter()
    try:
        visit.begin(await gate.turn(visit.entry))
        yield visit
    finally:
        visit.leave()
