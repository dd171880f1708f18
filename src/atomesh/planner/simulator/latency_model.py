"""How long a step takes: the mesh's own formula, with constants from a model's shape and a machine's rate.

A prompt of n tokens of which m lie in the cache costs C(n, m) = c0 + A·(n − m) + B·(n² − m²) seconds:
A = 2 · parameters / rate, a multiply and an add for each weight, and B = 2 · layers · width / rate, since a
token at position p attends to p keys for 4 · layers · width · p operations, which over the tokens of a prompt
sum to half of 4 · layers · width · n². `width` is heads × head size.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from atomesh.errors import ConfigurationError
from atomesh.mesh.placement.costs import StepCosts

if TYPE_CHECKING:
    from atomesh.engine.core.batch import ScheduledBatch

STEP_S = 0.010  # c0: launching a step
H100_BF16_FLOPS = 989.4e12  # dense, SXM; NVIDIA H100 data sheet


def prefill_costs(parameters: float, layers: int, width: int, flops: float) -> StepCosts:
    """Of steps that only prefill. `flops` is the rate that is reached, in operations a second."""
    return StepCosts(
        fixed_s=STEP_S,
        token_s=2 * parameters / flops,
        quadratic_s=2 * layers * width / flops,
        context_s=0.0,
        sequence_s=0.0,
    )


COSTS: Mapping[str, StepCosts] = {
    # Llama 3.1 70B: 70.6e9 parameters, 80 layers, 64 heads of 128.
    "llama-70b@8xh100-50%": prefill_costs(70.6e9, 80, 64 * 128, 8 * 0.5 * H100_BF16_FLOPS),
}
DEFAULT_COST = "llama-70b@8xh100-50%"


def find_costs(name: str) -> StepCosts:
    """Raises ConfigurationError for a name that is not known."""
    if name not in COSTS:
        raise ConfigurationError(f"the cost {name!r} is not known; choose from {', '.join(sorted(COSTS))}")
    return COSTS[name]


def work_of(batch: "ScheduledBatch") -> tuple[int, int]:
    """Σ(n − m) and Σ(n² − m²) over the batch's sequences, each of which computes its tokens m … n."""
    tokens = squares = 0
    for sequence in batch.sequences:
        start, count = sequence.start, len(sequence.token_ids)
        tokens += count
        squares += count * (count + 2 * start)
    return tokens, squares
