"""One decision while it is being made: the inputs, and what follows from them for all candidates alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.mesh.placement.inputs import PlacementInputs, RequestFacts, Weights
from atomesh.mesh.placement.seats import Seat
from atomesh.protocol.block_hash import BlockHash


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """`best_cached` is the most of the prompt that any seat holds, `holder_queued_s` the shortest queue of
    those that hold as much; `waste_price` is λ, `popularity` how many have asked for that much of late.
    """

    inputs: PlacementInputs
    request: RequestFacts
    weights: Weights
    best_cached: int
    holder_queued_s: float
    waste_price: float
    popularity: float = 0.0

    @property
    def best_prefix(self) -> BlockHash | None:
        """The last block of what the best holder has of the prompt."""
        depth = min(self.best_cached // self.request.block_size, len(self.request.block_hashes))
        return self.request.block_hashes[depth - 1] if depth else None


def make_case(inputs: PlacementInputs, seats: Sequence[Seat]) -> Case:
    best = max((seat.ready_tokens for seat in seats), default=0)
    queued_s = min((seat.queued_s for seat in seats if seat.ready_tokens == best), default=0.0)
    return Case(inputs, inputs.request, inputs.weights, best, queued_s, _waste_price(inputs, seats))


def _waste_price(inputs: PlacementInputs, seats: Sequence[Seat]) -> float:
    """A second wasted delays all who stand behind it: as many as there are prompts in the mean queue."""
    queued_s = sum(seat.queued_s for seat in seats)
    if not queued_s:
        return 0.0
    own_s = sum(seat.step.prefill_s(inputs.request.num_prompt_tokens, 0) for seat in seats)
    return min(inputs.weights.waste * queued_s / own_s, inputs.weights.most_waste)
