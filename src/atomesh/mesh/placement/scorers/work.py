"""The work that lies before a request, by count: what is known without any measurement.

It is counted in prompt tokens; a sequence is SEQUENCE_TOKENS of them. A token is taken for what it costs in
the prior everywhere, so that the order of workers is that of the counts.
"""

from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.case import Case
from atomesh.mesh.placement.costs import PRIOR_STEP
from atomesh.mesh.placement.seats import Seat

SEQUENCE_TOKENS = 32
HANDOFF_TOKENS = 64  # what a hand-off costs in itself, so that equals keep their requests whole


def prefill_work(seat: Seat, case: Case) -> float:
    return PRIOR_STEP.token_s * (work_before(seat.worker) + case.request.num_prompt_tokens)


def decode_work(seat: Seat, case: Case) -> float:
    return PRIOR_STEP.token_s * (work_before(seat.worker) + case.request.choices * SEQUENCE_TOKENS)


def hand_off_work(_prefill: Seat, _decode: Seat, _case: Case) -> float:
    return PRIOR_STEP.token_s * HANDOFF_TOKENS


def work_before(worker: WorkerSnapshot) -> int:
    """What we have sent, or what the worker reports if that is more."""
    sequences = max(worker.sequences, worker.load.running + worker.load.waiting)
    return worker.prefill_tokens + sequences * SEQUENCE_TOKENS
