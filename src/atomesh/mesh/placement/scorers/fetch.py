"""T_fetch: until that part of the prompt is there that lies in a slower tier, or that a peer sends."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def fetch(seat: Seat, case: Case) -> float:
    if not seat.host_tokens:
        return seat.fetch_s
    own = seat.worker.incarnation
    return seat.fetch_s + case.inputs.costs.link(own, own).transfer_s(seat.host_tokens * seat.token_bytes)
