"""μ·decode_interference: the answers that are generated here stand still while the prompt is computed."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def interference(seat: Seat, case: Case) -> float:
    stall_s = seat.step.tokens_s(case.request.num_prompt_tokens, seat.ready_tokens)
    return case.weights.interference * seat.batch * stall_s
