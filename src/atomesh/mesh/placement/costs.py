"""What steps and transfers cost, in seconds: a frozen view of the cost model, for decisions to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A step takes `fixed_s`, and more for each prompt token that it computes, each of Σ(n² − m²), each
    token that a decoding sequence attends to, and each decoding sequence."""

    fixed_s: float
    token_s: float
    quadratic_s: float
    context_s: float
    sequence_s: float

    def prefill_s(self, num_tokens: int, cached: int) -> float:
        """C(n, m): a prompt of `num_tokens`, the first `cached` of which need not be computed."""
        return (
            self.fixed_s
            + self.token_s * (num_tokens - cached)
            + self.quadratic_s * (num_tokens * num_tokens - cached * cached)
        )

    def decode_s(self, context_tokens: float, batch: float) -> float:
        """A step of `batch` sequences that attend to `context_tokens` between them."""
        return self.fixed_s + self.context_s * context_tokens + self.sequence_s * batch

    def scaled(self, factor: float) -> "StepCosts":
        return StepCosts(
            self.fixed_s * factor,
            self.token_s * factor,
            self.quadratic_s * factor,
            self.context_s * factor,
            self.sequence_s * factor,
        )


@dataclass(frozen=True, slots=True)
class LinkCosts:
    latency_s: float
    byte_s: float

    def transfer_s(self, num_bytes: float) -> float:
        return self.latency_s + self.byte_s * num_bytes


# A small model on a few cores. Only the ratios matter for long: the first steps measured set the scale. They
# are a roofline's: reading the weights takes as long as the products of 64 tokens, attention to 16,384 tokens
# as long as the other products of the token that attends, and reading KV of 100,000 tokens as the weights.
PRIOR_STEP = StepCosts(
    fixed_s=16e-3,
    token_s=0.25e-3,
    quadratic_s=0.25e-3 / 16_384,
    context_s=16e-3 / 100_000,
    sequence_s=0.25e-3,
)
PRIOR_LINK = LinkCosts(latency_s=1e-3, byte_s=1e-9)


@dataclass(frozen=True, slots=True)
class Costs:
    """By worker incarnation, and by (sender, receiver); what is not there costs what the default says."""

    steps: Mapping[str, StepCosts] = field(default_factory=dict)
    links: Mapping[tuple[str, str], LinkCosts] = field(default_factory=dict)
    default_step: StepCosts = PRIOR_STEP
    default_link: LinkCosts = PRIOR_LINK

    def step(self, incarnation: str) -> StepCosts:
        return self.steps.get(incarnation, self.default_step)

    def link(self, sender: str, receiver: str) -> LinkCosts:
        return self.links.get((sender, receiver), self.default_link)


PRIOR_COSTS = Costs()
