"""What a role means inside a worker: how many tokens one of its steps may compute."""

from atomesh.engine.core.scheduler import SchedulerConfig
from atomesh.protocol.worker import RoleWeights

DECODE_SHARE = 0.25  # of the budget, for a worker that is offered no prefill


def chunk_budget(weights: RoleWeights, limits: SchedulerConfig) -> int:
    """Tokens a step: all that the limits allow for a worker that prefills, less where long chunks only stall.

    A decode worker still prefills what has to be computed again; and it can always step all its sequences at
    once, or compute a block.
    """
    most = limits.max_num_batched_tokens
    share = DECODE_SHARE + (1 - DECODE_SHARE) * min(max(weights.prefill, 0.0), 1.0)
    return min(most, max(limits.max_num_seqs, limits.block_size, round(share * most)))
