"""Whether the KV of prompt and answer fits; if not, how long until enough of it has been given back."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def room(seat: Seat, case: Case) -> float:
    """All that is held comes back in the time of one answer."""
    if seat.room_tokens is None:
        return 0.0
    request = case.request
    missing = request.num_prompt_tokens + request.choices * request.output_tokens - seat.room_tokens
    if missing <= 0:
        return 0.0
    answer_s = request.output_tokens * seat.step.decode_s(seat.context_tokens, seat.batch)
    return answer_s * missing / max(seat.context_tokens, missing)
