"""How long a step takes: the mesh's own formula, with constants from a model's shape and a machine's rate.

A prompt of n tokens of which m lie in the cache costs C(n, m) = c0 + A·(n − m) + B·(n² − m²) seconds:
A = 2 · parameters / rate, a multiply and an add for each weight, and B = 2 · layers · width / rate, since a
token at position p attends to p keys for 4 · layers · width · p operations, which over the tokens of a prompt
sum to half of 4 · layers · width · n². `width` is heads × head size.
"""

from collections.abc import Mapping

from atomesh.errors import ConfigurationError
from atomesh.mesh.placement.costs import StepCosts
from atomesh.protocol.step_sample import StepSample

STEP_S = 0.010  # c0: launching a step
H100_BF16_FLOPS = 989.4e12  # dense, SXM; NVIDIA H100 data sheet


def compute_costs(parameters: float, layers: int, width: int, flops: float) -> StepCosts:
    """Of steps bound by arithmetic, as prefill is. `flops` is the rate that is reached, per second.

    A single token after p others is one of a prompt: n² − (n − 1)² is about 2p.
    """
    token_s, quadratic_s = 2 * parameters / flops, 2 * layers * width / flops
    return StepCosts(
        fixed_s=STEP_S,
        token_s=token_s,
        quadratic_s=quadratic_s,
        context_s=2 * quadratic_s,
        sequence_s=token_s,
    )


COSTS: Mapping[str, StepCosts] = {
    # Llama 3.1 70B: 70.6e9 parameters, 80 layers, 64 heads of 128.
    "llama-70b@8xh100-50%": compute_costs(70.6e9, 80, 64 * 128, 8 * 0.5 * H100_BF16_FLOPS),
}
DEFAULT_COST = "llama-70b@8xh100-50%"


def find_costs(name: str) -> StepCosts:
    """Raises ConfigurationError for a name that is not known."""
    if name not in COSTS:
        raise ConfigurationError(f"the cost {name!r} is not known; choose from {', '.join(sorted(COSTS))}")
    return COSTS[name]


def step_seconds(costs: StepCosts, work: StepSample) -> float:
    """How long a step takes that computes what the sample counts."""
    return (
        costs.fixed_s
        + costs.token_s * work.prefill_tokens
        + costs.quadratic_s * work.prefill_quadratic
        + costs.decoding_s(work.context_tokens, work.batch)
    )
