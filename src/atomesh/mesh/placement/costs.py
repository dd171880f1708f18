"""What steps and transfers cost, in seconds: a frozen view of the cost model, for decisions to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from atomesh.protocol.roofline import Roofline

LEAST_S, MOST_S = 1e-18, 10.0  # what a step, a token or a pair of tokens may take, by a worker's own word
CHUNK_TOKENS = 512  # of a worker whose steps have shown nothing else yet


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A step takes `fixed_s`, and more for each prompt token that it computes, each of Σ(n² − m²), each
    token that a decoding sequence attends to, and each decoding sequence.

    It computes at most `chunk_tokens` of prompts.
    """

    fixed_s: float
    token_s: float
    quadratic_s: float
    context_s: float
    sequence_s: float
    chunk_tokens: int = CHUNK_TOKENS

    @property
    def row(self) -> tuple[float, float, float, float, float]:
        return self.fixed_s, self.token_s, self.quadratic_s, self.context_s, self.sequence_s

    @classmethod
    def from_row(cls, row: Sequence[float], chunk_tokens: int) -> "StepCosts":
        fixed_s, token_s, quadratic_s, context_s, sequence_s = row
        return cls(fixed_s, token_s, quadratic_s, context_s, sequence_s, chunk_tokens)

    def num_chunks(self, num_tokens: int) -> int:
        """The steps that so many prompt tokens take."""
        return -(-num_tokens // self.chunk_tokens)

    def prefill_s(self, num_tokens: int, cached: int) -> float:
        """C(n, m): a prompt of `num_tokens`, the first `cached` of which need not be computed.

        The sum of c0 + A(n − m) + B(n² − m²) over its chunks, of which only c0 adds up.
        """
        return self.fixed_s * self.num_chunks(num_tokens - cached) + self.tokens_s(num_tokens, cached)

    def tokens_s(self, num_tokens: int, cached: int) -> float:
        """As `prefill_s`, in steps that are made anyway."""
        return self.token_s * (num_tokens - cached) + self.quadratic_s * (
            num_tokens * num_tokens - cached * cached
        )

    def decode_s(self, context_tokens: float, batch: float) -> float:
        """A step of `batch` sequences that attend to `context_tokens` between them."""
        return self.fixed_s + self.decoding_s(context_tokens, batch)

    def decoding_s(self, context_tokens: float, batch: float) -> float:
        """As `decode_s`, in a step that is made anyway."""
        return self.context_s * context_tokens + self.sequence_s * batch


def roofline_step(bounds: Roofline, chunk_tokens: int = CHUNK_TOKENS) -> StepCosts | None:
    """What to expect of a worker that has made no step yet; None where its own words make no sense: where
    anything would take less than LEAST_S or more than MOST_S.

    A step reads the weights once, whatever is in it; Σ(n² − m²) counts each pair of tokens twice.
    """
    if not all(isfinite(speed) and speed > 0.0 for speed in (bounds.flops_per_s, bounds.bytes_per_s)):
        return None
    row = (
        bounds.weight_bytes / bounds.bytes_per_s,
        bounds.token_flops / bounds.flops_per_s,
        bounds.pair_flops / 2 / bounds.flops_per_s,
        bounds.kv_bytes / bounds.bytes_per_s,
        bounds.sequence_flops / bounds.flops_per_s,
    )
    return StepCosts(*row, chunk_tokens) if all(LEAST_S <= one <= MOST_S for one in row) else None


@dataclass(frozen=True, slots=True)
class LinkCosts:
    latency_s: float
    byte_s: float

    def transfer_s(self, num_bytes: float) -> float:
        return self.latency_s + self.byte_s * num_bytes


# Of a worker that says nothing of itself: a small model on a few cores. Only the ratios matter for long: the
# first steps measured set the scale. They are a roofline's: reading the weights takes as long as the
# products of 64 tokens, attention to 16,384 tokens as long as the other products of the token that attends,
# and reading KV of 100,000 tokens as the weights.
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
    """By worker incarnation, and by (sender, receiver); what is not there costs what the default says.

    `settled` are the incarnations whose prefills have been measured often enough to refuse work by.
    """

    steps: Mapping[str, StepCosts] = field(default_factory=dict)
    links: Mapping[tuple[str, str], LinkCosts] = field(default_factory=dict)
    default_step: StepCosts = PRIOR_STEP
    default_link: LinkCosts = PRIOR_LINK
    settled: frozenset[str] = frozenset()

    def step(self, incarnation: str) -> StepCosts:
        return self.steps.get(incarnation, self.default_step)

    def link(self, sender: str, receiver: str) -> LinkCosts:
        return self.links.get((sender, receiver), self.default_link)


PRIOR_COSTS = Costs()
