"""μ·what the answers that are generated here lose: with this one among them their steps take longer."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def crowding(seat: Seat, case: Case) -> float:
    if not seat.batch:
        return 0.0
    request = case.request
    context = request.choices * (request.num_prompt_tokens + request.output_tokens // 2)
    longer_s = seat.step.decoding_s(context, request.choices)
    return case.weights.interference * request.output_tokens * seat.batch * longer_s
