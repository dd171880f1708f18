"""C(n, m): the prompt's own computation, but for what is there already."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def compute(seat: Seat, case: Case) -> float:
    return seat.step.prefill_s(case.request.num_prompt_tokens, seat.ready_tokens)
