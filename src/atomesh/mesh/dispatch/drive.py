"""One request's flow, driven: its actions carried out, the events brought back, its deltas handed on."""

from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING

from atomesh.frontend.token_service import Carry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.dispatch.decider import Decider
from atomesh.mesh.dispatch.explanations import Account
from atomesh.mesh.dispatch.legs import Legs
from atomesh.mesh.dispatch.placer import request_of
from atomesh.mesh.dispatch.tickets import TicketOffice
from atomesh.mesh.request_flow.steps import (
    Abort,
    Action,
    Bar,
    Emit,
    Event,
    Flow,
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
from atomesh.protocol.generation import TokenDelta

if TYPE_CHECKING:
    from atomesh.protocol.ticket import Ticket


class Drive:
    """Whatever ends it, in the end each leg has been released or aborted, and each ticket released."""

    def __init__(
        self,
        legs: Legs,
        decider: Decider,
        office: TicketOffice,
        counts: Counter[str],
        account: Account,
        carry: Carry | None = None,
    ) -> None:
        """`counts` hears of `retries` and `migrations`, `account` of what comes of the decisions.

        `carry` as TokenService has it.
        """
        self._legs = legs
        self._decider = decider
        self._office = office
        self._counts = counts
        self._account = account
        self._carry = carry and carry.heard_by(partial(decider.saw, account))
        self._tickets: list[Ticket] = []

    async def run(self, flow: Flow[None]) -> AsyncGenerator[list[TokenDelta], None]:
        """Closing it early ends the request, as an error in the flow does."""
        event: Event | None = None
        try:
            while (action := _next_action(flow, event)) is not None:
                event = None
                match action:  # the two that come for every token before the others
                    case Wait():
                        event = await self._legs.next(action.leg, action.source)
                    case Emit():
                        self._decider.saw(self._account, action.deltas)
                        yield action.deltas
                        event = await self._go_on(action)
                    case Place() | PlaceRest():
                        self._count(action)
                        event = await self._find(action)
                    case _:
                        event = self._carry_out(action)
        finally:
            flow.close()
            self._close()

    async def _go_on(self, said: Emit) -> Event | None:
        if said.then is None:
            return None
        return await self._legs.next(said.then, None, self._carry if said.is_steady else None)

    def _close(self) -> None:
        for ticket in self._tickets:
            self._office.release(ticket)
        self._legs.close()
        self._decider.ended(self._account)

    async def _find(self, action: Place | PlaceRest) -> Placed | Nowhere:
        found = await self._decider.find(action)
        if isinstance(found, Placed):
            self._legs.placed(found.placement, len(request_of(action).prompt_token_ids))
        return found

    def _count(self, action: Place | PlaceRest) -> None:
        if isinstance(action, PlaceRest):
            self._counts["migrations"] += 1
        else:
            self._counts["retries"] += bool(action.excluded)

    def _carry_out(self, action: Action) -> Event | None:
        match action:
            case Mint(request_id, choices, prefill, decode):
                self._legs.expect(decode, request_id, choices)
                return self._mint(request_id, prefill, decode)
            case MintFetch(request_id, lender, borrower):
                return self._mint(request_id, lender, borrower)
            case SendLeg():
                self._legs.send(action)
            case Release(leg):
                self._legs.release(leg)
            case Abort(leg):
                self._legs.abort(leg)
            case Bar(request):
                self._decider.bar(request)
        return None

    def _mint(self, request_id: str, prefill: WorkerSnapshot, decode: WorkerSnapshot) -> Minted:
        ticket = self._office.mint(request_id, prefill, decode)
        self._tickets.append(ticket)
        return Minted(ticket)


def _next_action(flow: Flow[None], event: Event | None) -> Action | None:
    try:
        return flow.send(event)
    except StopIteration:
        return None
