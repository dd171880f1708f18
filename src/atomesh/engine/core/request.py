"""A request inside the engine, and the lines of tokens that answer it.

    TokenSequence:  WAITING ──admit──▶ RUNNING ──stop, abort, error──▶ FINISHED
                     │   ▲                │ ▲
                     │   └────preempt─────┘ │
                pull, fetch                 │ a seat is free
                     ▼                      │
                  ARRIVING ──committed──▶ ARRIVED

A request starts as one sequence that stands for all its choices. When its prompt is computed, it forks into
one sequence a choice. A decode leg starts with one for each choice; while their KV is on its way they are
ARRIVING, and they wait to compute it themselves when it does not come. One that fetches its prompt's prefix
is ARRIVING meanwhile, and then WAITING again: the prefix is found in the cache.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec.structs import replace

from atomesh.protocol.generation import GenerationRequest, KVSource, Leg, Timings, TokenLogprobs

if TYPE_CHECKING:
    from atomesh.protocol.block_hash import BlockHash
    from atomesh.protocol.sampling import SamplingSpec

OrderKey = tuple[int, int, int]  # rank, arrival number, choice: the smaller goes first


class SequenceState(Enum):
    WAITING = auto()
    ARRIVING = auto()
    ARRIVED = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class RequestState:
    """What the choices of one request share. Times are in seconds on the engine's clock.

    `settled_s` is when a decode leg's KV had come, or was known not to come; `fetch_s` how long a prefix was
    waited for that was asked for at `fetch_began_s`.
    """

    request: GenerationRequest
    arrival_s: float
    leg: Leg | None = None
    sequences: "dict[int, TokenSequence]" = field(default_factory=dict)
    settled_s: float | None = None
    scheduled_s: float | None = None
    fetch_began_s: float = 0.0
    fetch_s: float = 0.0
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_announced: bool = False

    @property
    def first_sequence(self) -> "TokenSequence":
        return next(iter(self.sequences.values()))

    def timings(self, now: float) -> Timings:
        """What it waited and computed for until its first token, which is here."""
        settled_s = self.arrival_s if self.settled_s is None else self.settled_s
        scheduled_s = settled_s if self.scheduled_s is None else self.scheduled_s
        waited_s = settled_s - self.arrival_s + self.fetch_s
        return Timings(scheduled_s - settled_s - self.fetch_s, now - scheduled_s, waited_s)


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One line of tokens with its blocks.

    The KV of the first `num_computed_tokens` tokens lies in `block_table`. `block_hashes` are those of the
    leading full blocks, as far as they were needed.
    """

    sequence_id: int
    request: RequestState
    choices: tuple[int, ...]
    order_key: OrderKey
    sampling: "SamplingSpec"
    prompt_token_ids: list[int]
    output_token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    block_hashes: "list[BlockHash]" = field(default_factory=list)
    num_computed_tokens: int = 0
    num_registered_blocks: int = 0
    state: SequenceState = SequenceState.WAITING
    kv_source: KVSource | None = None  # until the first delta has said it

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids) - self.num_computed_tokens

    @property
    def is_first_prefill(self) -> bool:
        """Its prompt has not been answered yet: not even one token was sampled."""
        return not self.output_token_ids

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None

    @property
    def is_sound(self) -> bool:
        """What it holds goes with its state."""
        if self.state is SequenceState.WAITING:
            return not self.block_table
        return self.state is SequenceState.ARRIVING or (
            bool(self.block_table) and self.num_uncomputed_tokens > 0
        )

    def token_ids(self, start: int, end: int) -> list[int]:
        """The tokens at positions start … end − 1, prompt and output alike."""
        prompt_len = len(self.prompt_token_ids)
        if start >= prompt_len:
            return self.output_token_ids[start - prompt_len : end - prompt_len]
        if end <= prompt_len:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - prompt_len]

    def settle_prompt(self) -> None:
        """The prompt's log-probabilities are complete; a later recomputation need not produce them again."""
        if self.wants_prompt_logprobs:
            self.sampling = replace(self.sampling, prompt_logprobs=None)

    def branch(self, sequence_id: int, choice: int) -> "TokenSequence":
        """A sequence for one choice, with the same prompt; it has no blocks yet."""
        return TokenSequence(
            sequence_id=sequence_id,
            request=self.request,
            choices=(choice,),
            order_key=(self.order_key[0], self.order_key[1], choice),
            sampling=self.sampling,
            prompt_token_ids=self.prompt_token_ids,
            block_hashes=self.block_hashes.copy(),
        )
