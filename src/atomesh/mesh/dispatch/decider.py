"""Whoever drives a request asks this where it goes, and says what came of it."""

from collections.abc import Sequence
from typing import Protocol

from atomesh.mesh.dispatch.explanations import Account
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.generation import GenerationRequest, TokenDelta


class Decider(Protocol):
    async def find(self, wanted: Place | PlaceRest) -> Placed | Nowhere:
        """May wait; to leave meanwhile costs nothing."""
        ...

    def bar(self, request: GenerationRequest) -> None:
        """Workers died of it, for all that one can know: its prompt goes nowhere for a while."""
        ...

    def saw(self, account: Account, deltas: Sequence[TokenDelta]) -> None:
        """One step of the answer, on its way to the client."""
        ...

    def ended(self, account: Account) -> None:
        """Whether or not the answer is complete."""
        ...
