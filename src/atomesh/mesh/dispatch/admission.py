"""The line before one model's workers, in the event loop: whoever waits is woken when its turn has come."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.admission.admission import DEFAULT_RULES, Admission, Dropped, QueueRules
from atomesh.mesh.admission.cost import PRIOR_TARIFF, Tariff, tariff_of
from atomesh.mesh.admission.fair_queue import Waiting
from atomesh.mesh.admission.room import has_room, total_sequences
from atomesh.mesh.cluster.cluster import Cluster
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.costs import PRIOR_COSTS, Costs
from atomesh.mesh.placement.placement import candidates
from atomesh.protocol.generation import GenerationRequest

TARIFF_S = 1.0
POLL_S = 0.05  # for what changes without us: a worker that comes, another gateway's work that ends
TENANT_SHARE = 0.75  # of all sequences, where there are several tenants: the next one finds a place at once


@dataclass(frozen=True, slots=True)
class GateOptions:
    """`are_several_tenants` says so of now. `predict_ttft` is how long a request would take from its turn to
    its first token, in seconds, None where nobody knows; it must be quick. `costs` are what is known of the
    workers' speed, for what they do to be charged by."""

    rules: QueueRules = DEFAULT_RULES
    are_several_tenants: Callable[[], bool] = lambda: False
    predict_ttft: Callable[[GenerationRequest], float | None] = lambda _: None
    costs: Callable[[], Costs] = lambda: PRIOR_COSTS


DEFAULT_OPTIONS = GateOptions()


class AdmissionGate:
    """enqueue, then `await turn`, then `leave` in every case."""

    def __init__(
        self, model: str, registry: Cluster, clock: Clock, options: GateOptions = DEFAULT_OPTIONS
    ) -> None:
        self._model = model
        self._registry = registry
        self._clock = clock
        self._options = options
        self._admission = Admission(options.rules)
        self._turns: dict[Waiting, asyncio.Future[None]] = {}
        self._running: set[Waiting] = set()
        self._unplaced: Waiting | None = None  # its turn has come, and its work does not show yet
        self._timer: asyncio.TimerHandle | None = None
        self._closed_by: AtomeshError | None = None
        self._tariff = PRIOR_TARIFF
        self._priced_at = clock.now() - TARIFF_S

    @property
    def books(self) -> Admission:
        """To be read, not to be told."""
        return self._admission

    def close(self, error: AtomeshError) -> None:
        """Refuse whoever waits, and whoever comes, with `error`; those that run go on."""
        self._closed_by = error
        self._drop(Dropped(entry, error) for entry in tuple(self._turns) if self._admission.withdraw(entry))

    def enqueue(self, entry: Waiting, request: GenerationRequest) -> None:
        """Raises ServiceUnavailableError or RateLimitError at once when it has no place here."""
        if self._closed_by is not None:
            raise self._closed_by
        service_s = None if entry.deadline_at is None else self._options.predict_ttft(request)
        self._drop(self._admission.enqueue(entry, self._clock.now(), service_s))
        self._turns[entry] = asyncio.get_running_loop().create_future()
        self.look()

    async def turn(self, entry: Waiting) -> float:
        """Returns when it is the request's turn, with the seconds it has waited.

        Whatever it is for must be placed before the next `await`. Raises what its client shall hear when it
        waits in vain.
        """
        waited_s = 0.0
        if entry not in self._running:
            await self._turns[entry]
            waited_s = self._clock.now() - entry.arrived_at
        asyncio.get_running_loop().call_soon(self._placed, entry)
        return waited_s

    def tariff(self) -> Tariff:
        """What requests that begin now are charged by; of TARIFF_S ago at most."""
        now = self._clock.now()
        if now - self._priced_at >= TARIFF_S:
            tariff, self._priced_at = tariff_of(self._workers(), self._options.costs()), now
            self._tariff = tariff if tariff.is_finite else self._tariff
        return self._tariff

    def charge(self, entry: Waiting, cost: float) -> None:
        self._admission.charge(entry, cost)

    def leave(self, entry: Waiting, cost: float) -> None:
        """The request is over, or its client does not wait any more; `cost` is what was not charged yet."""
        self._turns.pop(entry, None)
        if entry in self._running:
            self._running.remove(entry)
            self._admission.finished(entry, cost, self._clock.now())
        else:
            self._admission.withdraw(entry)
        self._placed(entry)

    def look(self) -> None:
        """Something may have changed: wake the next whose turn has come, one at a time, so that the work of
        each shows before the room for another is measured."""
        if self._unplaced is None and self._admission.num_waiting:
            self._wake_next()
        if self._admission.num_waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._tick)

    def _wake_next(self) -> None:
        workers = self._workers()
        entry = self._admission.next(
            lambda waiting: has_room(workers, waiting.prompt_tokens, waiting.choices),
            self._most_per_tenant(workers),
            self._clock.now(),
        )
        if entry is None:
            return
        self._unplaced = entry
        self._running.add(entry)
        turn = self._turns.pop(entry)
        if not turn.done():
            turn.set_result(None)

    def _placed(self, entry: Waiting) -> None:
        if self._unplaced is entry:
            self._unplaced = None
        self.look()

    def _tick(self) -> None:
        self._timer = None
        self._drop(self._admission.expire(self._clock.now()))
        self.look()

    def _drop(self, dropped: Iterable[Dropped]) -> None:
        for drop in dropped:
            turn = self._turns.pop(drop.entry, None)
            if turn is not None and not turn.done():
                turn.set_exception(drop.error)
                turn.exception()  # whoever waits hears of it; it may have been cancelled meanwhile

    def _workers(self) -> Sequence[WorkerSnapshot]:
        try:
            found = candidates(self._model, self._registry.snapshot(), self._clock.now())
            return found.fresh or found.ready
        except ServiceUnavailableError:
            return ()

    def _most_per_tenant(self, workers: Sequence[WorkerSnapshot]) -> int | None:
        total = total_sequences(workers) if self._options.are_several_tenants() else None
        return None if total is None else max(1, int(total * TENANT_SHARE))
