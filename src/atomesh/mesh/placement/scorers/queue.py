"""T_queue: until the worker has computed what was sent there before, its decode steps in between."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def queue(seat: Seat, case: Case) -> float:
    own = case.request.num_prompt_tokens - seat.ready_tokens
    steps = seat.step.num_chunks(seat.queued_tokens + own)
    return seat.queued_s + steps * seat.step.decoding_s(seat.context_tokens, seat.batch)
