"""Drives a request's flow by hand: places, mints and sends at once; the test says what each leg brings."""

from dataclasses import dataclass, field, replace

from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import Placement, PlacementRules, candidates
from atomesh.mesh.request_flow.steps import (
    Abort,
    Action,
    Arrived,
    Bar,
    Emit,
    Event,
    Flow,
    LegFailed,
    Mint,
    Minted,
    MintFetch,
    Nowhere,
    Place,
    Placed,
    PlaceRest,
    Release,
    SendLeg,
    Wait,
)
from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.ticket import Ticket
from atomesh.protocol.worker import Role
from atomesh.testing.mesh_snapshots import MODEL, cluster, worker_snapshot
from atomesh.testing.placed import place_by_count, place_rest_by_count

NOW = 100.0


@dataclass(slots=True)
class FlowDriver:
    """`workers` may change meanwhile. `waiting` is what the flow waits for, None once it is over.

    Whole requests are placed so that two blocks of 16 tokens are fetched from the `lender`, if there is one.
    """

    flow: Flow[None]
    workers: list[str]
    roles: dict[str, Role] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)
    sent: list[SendLeg] = field(default_factory=list)
    open_legs: list[SendLeg] = field(default_factory=list)
    aborted: list[SendLeg] = field(default_factory=list)
    emitted: list[TokenDelta] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    barred: list[GenerationRequest] = field(default_factory=list)
    lender: str | None = None
    waiting: Wait | None = None
    error: AtomeshError | None = None

    def start(self) -> None:
        self._go_on(None)

    def arrive(self, *deltas: TokenDelta) -> None:
        """What the leg waited for brings."""
        self._go_on(Arrived(list(deltas)))

    def fail(
        self, error: AtomeshError | None = None, leg: SendLeg | None = None, *, is_suspect: bool = True
    ) -> None:
        """The leg waited for, or `leg`, fails: with the worker's `error`, or because the worker is lost."""
        if self.waiting is None:
            raise AssertionError("the flow waits for nothing")
        failed = leg or self.waiting.leg
        self.open_legs.remove(failed)
        if error is None:
            self.workers.remove(failed.worker.address)
        lost = ServiceUnavailableError("lost")
        self._go_on(LegFailed(failed, error or lost, is_lost=error is None, is_suspect=is_suspect))

    @property
    def leg(self) -> SendLeg:
        """The one that the flow waits for."""
        if self.waiting is None:
            raise AssertionError("the flow waits for nothing")
        return self.waiting.leg

    def tokens(self, choice: int = 0) -> list[int]:
        return [token for delta in self.emitted if delta.choice == choice for token in delta.token_ids]

    def _go_on(self, event: Event | None) -> None:
        self.waiting = None
        try:
            action = self.flow.send(event)
            while (wait := _wait_in(action)) is None:
                action = self.flow.send(self._carry_out(action))
            self._carry_out(action)
            self.waiting = wait
        except StopIteration:
            return
        except AtomeshError as error:
            self.error = error

    def _carry_out(self, action: Action) -> Event | None:
        match action:
            case Place() | PlaceRest():
                return self._place(action)
            case Mint(request_id, _, prefill, decode):
                return self._mint(request_id, prefill, decode)
            case MintFetch(request_id, lender, borrower):
                return self._mint(request_id, lender, borrower)
            case SendLeg():
                self.sent.append(action)
                self.open_legs.append(action)
            case Bar(request):
                self.barred.append(request)
            case Emit(deltas):
                self.emitted += deltas
            case Release(leg) | Abort(leg):
                self._let_go(leg, is_abort=isinstance(action, Abort))
        return None

    def _mint(self, request_id: str, prefill: WorkerSnapshot, decode: WorkerSnapshot) -> Minted:
        ticket = Ticket(
            ticket_id=bytes([len(self.tickets)]) * 16,
            gateway="g",
            serial=len(self.tickets) + 1,
            request_id=request_id,
            prefill=prefill.incarnation,
            decode=decode.incarnation,
            ttl_s=1.0,
        )
        self.tickets.append(ticket)
        return Minted(ticket)

    def _let_go(self, leg: SendLeg, *, is_abort: bool) -> None:
        if leg in self.open_legs:
            self.open_legs.remove(leg)
            if is_abort:
                self.aborted.append(leg)

    def _place(self, action: Place | PlaceRest) -> Placed | Nowhere:
        snapshots = [worker_snapshot(name, self.roles.get(name, "unified")) for name in self.workers]
        try:
            workers = candidates(MODEL, cluster(*snapshots), NOW, action.excluded).fresh
            if isinstance(action, Place):
                return Placed(self._with_fetch(place_by_count(action.request, workers, self.rules)))
            return Placed(place_rest_by_count(action.rest, workers, self.rules))
        except AtomeshError as error:
            return Nowhere(error)

    def _with_fetch(self, placement: Placement) -> Placement:
        if self.lender is None:
            return placement
        lender = worker_snapshot(self.lender)
        return replace(placement, cached_tokens=32, fetch_from=lender, patience_s=0.5)


def _wait_in(action: Action) -> Wait | None:
    if isinstance(action, Emit):
        return None if action.then is None else Wait(action.then)
    return action if isinstance(action, Wait) else None
