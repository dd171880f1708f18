"""What the second token waits for: the KV that is still on its way when the first has been sampled.

Each chunk is sent while the next is computed, so what remains is the last of them, or all that the link is
slower than the computation. Grant and commit are a round trip each.
"""

from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.seats import Seat

ROUND_TRIPS = 2


def hand_off(prefill: Seat, decode: Seat, case: Case) -> float:
    link = case.inputs.costs.link(prefill.worker.incarnation, decode.worker.incarnation)
    num_tokens = case.request.num_prompt_tokens
    missing = num_tokens - decode.cached_tokens
    whole_s = missing * prefill.token_bytes * link.byte_s
    last_s = min(missing, prefill.step.chunk_tokens) * prefill.token_bytes * link.byte_s
    late_s = last_s
    if whole_s > last_s:
        late_s = max(last_s, whole_s - prefill.step.prefill_s(num_tokens, prefill.ready_tokens))
    return 2 * ROUND_TRIPS * link.latency_s + late_s
