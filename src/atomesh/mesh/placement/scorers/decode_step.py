"""The answer's own time: as many steps as it has tokens, each as long as steps are once it has joined."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def decode_step(seat: Seat, case: Case) -> float:
    request = case.request
    context = seat.context_tokens + request.choices * (request.num_prompt_tokens + request.output_tokens // 2)
    step_s = seat.step.decode_s(context, seat.batch + request.choices)
    return case.weights.interference * request.output_tokens * step_s
