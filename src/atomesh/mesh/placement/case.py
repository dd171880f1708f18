"""One decision while it is being made: the inputs, and what follows from them for all candidates alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts, Weights
from atomesh.mesh.placement.seats import Seat, best_cached


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """`best_cached` is the most of the prompt that any seat holds; `waste_price` is λ."""

    inputs: PlacementInputs
    best_cached: int
    waste_price: float

    @property
    def request(self) -> RequestFacts:
        return self.inputs.request

    @property
    def weights(self) -> Weights:
        return self.inputs.weights


def make_case(inputs: PlacementInputs, seats: Sequence[Seat]) -> Case:
    return Case(inputs, best_cached(seats), _waste_price(inputs, seats))


def _waste_price(inputs: PlacementInputs, seats: Sequence[Seat]) -> float:
    """A second wasted delays all who stand behind it: as many as there are prompts in the mean queue."""
    queued_s = sum(seat.queued_s for seat in seats)
    if not queued_s:
        return 0.0
    own_s = sum(seat.step.prefill_s(inputs.request.num_prompt_tokens, 0) for seat in seats)
    return min(inputs.weights.waste * queued_s / own_s, inputs.weights.most_waste)
