"""What a role means inside a worker: how many tokens one of its steps may compute."""

from atomesh.protocol.worker import RoleWeights

DECODE_SHARE = 0.25  # of the budget, for a worker that is offered no prefill


def chunk_budget(weights: RoleWeights, most: int, floor: int) -> int:
    """Tokens a step: all of `most` for a worker that prefills, less where long chunks would only stall.

    A decode worker still prefills what has to be computed again. `floor` is what it must be able to step at
    once: one token for each sequence, and at least a block.
    """
    share = DECODE_SHARE + (1 - DECODE_SHARE) * min(max(weights.prefill, 0.0), 1.0)
    return min(most, max(floor, round(share * most)))
