"""What a policy is: whom it nominates for a step, and by which terms the nominees are compared."""

from collections.abc import Sequence
from typing import Protocol

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


class Policy(Protocol):
    """One instance for each model and step, prefill or decode: it may keep state, but reads no clock.

    `scorers` names the entry of SCORERS whose terms are summed. With `stays_whole`, a nominee that may do
    both steps does both. What `reads_prompt` has use for the hashes of a prompt's blocks.
    """

    scorers: str
    stays_whole: bool
    reads_prompt: bool

    def study(self, case: Case) -> Case:
        """The case with what the policy has learned from those before it; called once for each."""
        ...

    def nominate(self, seats: Sequence[Seat], case: Case) -> Sequence[Seat]:
        """Those of the seats, never none, among whom the sum of the terms decides. `seats` is not empty."""
        ...


class Counting:
    """What policies that measure nothing have in common: counts decide where they leave a choice."""

    scorers = "work"
    stays_whole = True
    reads_prompt = False

    def study(self, case: Case) -> Case:
        return case
