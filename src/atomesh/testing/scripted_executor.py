"""An executor without a model: it keeps a pool of what was written where, and answers by a script.

What it hands to the script is the history that it reads back through the block table, so a block that was
shared, copied, freed or reused wrongly shows, as it would with a real model: reading a slot that was never
written, or written after another history, raises.
"""

from collections.abc import Callable, Sequence

from atomesh.engine.core.batch import (
    SampledToken,
    ScheduledBatch,
    ScheduledSequence,
    SequenceOutcome,
    StepResult,
)
from atomesh.protocol.generation import TokenLogprobs

Block = tuple[tuple[int, int] | None, ...]
NextToken = Callable[[Sequence[int], int], int]
"""(the whole history as the blocks show it, the choice) → the next token id."""


def token_from_history(vocab_size: int) -> NextToken:
    """Each token depends on every token before it and on the choice."""

    def next_token(history: Sequence[int], choice: int) -> int:
        return hash((*history, choice, -1)) % vocab_size

    return next_token


def token_from_list(prompt_len: int, token_ids: Sequence[int]) -> NextToken:
    """`token_ids` in order, over and over, after a prompt of `prompt_len` tokens."""

    def next_token(history: Sequence[int], choice: int) -> int:
        return token_ids[(len(history) - prompt_len) % len(token_ids)]

    return next_token


class ScriptedExecutor:
    """Where `fails` says yes to a scheduled sequence, the whole batch raises RuntimeError."""

    def __init__(
        self,
        next_token: NextToken,
        num_blocks: int,
        block_size: int,
        fails: Callable[[ScheduledSequence], bool] = lambda _: False,
    ) -> None:
        self.batches: list[ScheduledBatch] = []
        self.is_closed = False
        self._next_token = next_token
        self._block_size = block_size
        self._slots: list[list[tuple[int, int] | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._fails = fails

    def execute(self, batch: ScheduledBatch) -> StepResult:
        self.batches.append(batch)
        for copy in batch.copies:
            self._slots[copy.target] = self._slots[copy.source].copy()
        digests = [self._read(sequence, sequence.start)[1] for sequence in batch.sequences]
        for sequence, digest in zip(batch.sequences, digests, strict=True):
            if self._fails(sequence):
                raise RuntimeError(f"sequence {sequence.sequence_id} fails, as scripted")
            self._write(sequence, digest)
        return StepResult({sequence.sequence_id: self._outcome(sequence) for sequence in batch.sequences})

    def close(self) -> None:
        self.is_closed = True

    def block(self, block: int) -> Block:
        """What a block shows."""
        return tuple(self._slots[block])

    def overwrite(self, block: int, content: Block) -> None:
        """Another worker's doing: from now on the block shows `content`."""
        self._slots[block] = list(content)

    def _write(self, sequence: ScheduledSequence, previous: int) -> None:
        for position, token_id in enumerate(sequence.token_ids, start=sequence.start):
            previous = hash((previous, token_id, position))
            block = sequence.block_table[position // self._block_size]
            self._slots[block][position % self._block_size] = (token_id, previous)

    def _read(self, sequence: ScheduledSequence, end: int) -> tuple[list[int], int]:
        """The tokens that the blocks show before `end`, and the digest of their chain."""
        history: list[int] = []
        digest = 0
        for position in range(end):
            block = sequence.block_table[position // self._block_size]
            slot = self._slots[block][position % self._block_size]
            if slot is None or slot[1] != hash((digest, slot[0], position)):
                raise AssertionError(
                    f"sequence {sequence.sequence_id} reads foreign KV at position {position}, block {block}"
                )
            history.append(slot[0])
            digest = slot[1]
        return history, digest

    def _outcome(self, sequence: ScheduledSequence) -> SequenceOutcome:
        history, _ = self._read(sequence, sequence.end)
        if history != [*sequence.prompt_token_ids, *sequence.output_token_ids][: sequence.end]:
            raise AssertionError(f"sequence {sequence.sequence_id} reads another sequence's KV")
        sampled = [self._sample(sequence, history, choice) for choice in sequence.choices]
        return SequenceOutcome(tuple(sampled), self._prompt_logprobs(sequence))

    def _sample(self, sequence: ScheduledSequence, history: list[int], choice: int) -> SampledToken:
        token_id = self._next_token(history, choice)
        top = sequence.sampling.logprobs
        return SampledToken(token_id, None if top is None else scripted_logprobs(token_id, top))

    def _prompt_logprobs(self, sequence: ScheduledSequence) -> tuple[TokenLogprobs, ...]:
        top = sequence.sampling.prompt_logprobs
        if top is None:
            return ()
        targets = sequence.prompt_token_ids[sequence.start + 1 : sequence.end + 1]
        return tuple(scripted_logprobs(token_id, top) for token_id in targets)


def scripted_logprobs(token_id: int, top: int) -> TokenLogprobs:
    """Log-probabilities that a test can foretell: the token is the most likely, the others follow by id."""
    entries = [(token_id + offset, -0.5 - offset) for offset in range(top)]
    return TokenLogprobs(token_id=token_id, logprob=-0.5, rank=1, top=entries)
