"""λ·(C(n, m) − C(n, m_best)): work that would be spared where the prompt is known best, while others wait."""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat


def waste(seat: Seat, case: Case) -> float:
    num_tokens, cost = case.request.num_prompt_tokens, seat.step.prefill_s
    spared = cost(num_tokens, seat.ready_tokens) - cost(num_tokens, max(case.best_cached, seat.ready_tokens))
    return case.waste_price * spared
