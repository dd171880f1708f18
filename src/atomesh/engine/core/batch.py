"""What one engine step computes, and what came of it: the whole language between scheduler and executor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atomesh.protocol.generation import TokenLogprobs
from atomesh.protocol.sampling import SamplingSpec


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Compute `token_ids` at positions `start`, `start + 1`, …; the KV of positions before `start` lies in
    `block_table`.

    When these tokens reach the end of what is known, one token is sampled from the last row for each of
    `choices` (several only for the last prefill chunk of a request with n > 1); otherwise `choices` is empty.
    `prompt_token_ids` and `output_token_ids` are the whole history, for penalties; the executor only reads
    them. With `sampling.prompt_logprobs`, rows whose next token is a prompt token give its logprobs.
    """

    sequence_id: int
    sampling: SamplingSpec
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    choices: tuple[int, ...]
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]

    @property
    def end(self) -> int:
        """Number of tokens whose KV is in the pool after the step."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a whole KV block, all layers, before the step: a branch gets its own last, partial block."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    sequences: tuple[ScheduledSequence, ...]
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """`ends_answer`: the request's grammar lets no token follow."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    ends_answer: bool = False


@dataclass(frozen=True, slots=True)
class SequenceOutcome:
    """`sampled` has one token for each of the sequence's `choices`, in that order.

    `prompt_logprobs` belong to prompt positions start + 1 … end (as far as the prompt goes).
    `error` means that this sequence alone cannot go on (its logits are not finite, say); the rest of the
    batch is good. `is_own_fault` says that the request asked for what cannot be (its constraints forbid
    every token, say): nothing is wrong with its KV.
    """

    sampled: tuple[SampledToken, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None
    is_own_fault: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome by sequence id, for every sequence of the batch."""

    outcomes: Mapping[int, SequenceOutcome] = field(default_factory=dict)
