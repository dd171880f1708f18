"""λ·(C(n, m) − C(n, m_best)): work that would be spared where the prompt is known best, while others wait."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def waste(seat: Seat, case: Case) -> float:
    return case.waste_price * spared(seat, case)


def spared(seat: Seat, case: Case) -> float:
    """What the best holder need not compute, at this worker's speed."""
    best = case.best_cached
    if seat.ready_tokens >= best:
        return 0.0
    num_tokens, cost = case.request.num_prompt_tokens, seat.step.prefill_s
    return cost(num_tokens, seat.ready_tokens) - cost(num_tokens, best)
