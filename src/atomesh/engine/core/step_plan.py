"""A batch in the making."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atomesh.engine.core.batch import BlockCopy, ScheduledBatch, ScheduledSequence

if TYPE_CHECKING:
    from atomesh.engine.core.request import TokenSequence


@dataclass(slots=True)
class StepPlan:
    """`budget` is what is left of the step's tokens."""

    budget: int
    sequences: list[ScheduledSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)

    def take(self, sequence: "TokenSequence", num_tokens: int) -> None:
        start = sequence.num_computed_tokens
        is_complete = num_tokens == sequence.num_uncomputed_tokens
        wants_token = is_complete and sequence.sampling.max_tokens > 0
        self.budget -= num_tokens
        self.sequences.append(
            ScheduledSequence(
                sequence.sequence_id,
                sequence.sampling,
                sequence.token_ids(start, start + num_tokens),
                start,
                sequence.block_table,
                sequence.choices if wants_token else (),
                sequence.prompt_token_ids,
                sequence.output_token_ids,
            )
        )

    def batch(self) -> ScheduledBatch:
        return ScheduledBatch(tuple(self.sequences), tuple(self.copies))
