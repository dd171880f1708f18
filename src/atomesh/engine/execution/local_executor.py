"""The executor that computes here: model, KV pool and sampler in this process."""

import math
from collections.abc import Sequence

import torch
from msgspec.structs import replace

from atomesh.engine.core.batch import (
    SampledToken,
    ScheduledBatch,
    ScheduledSequence,
    SequenceOutcome,
    StepResult,
)
from atomesh.engine.execution.kv_pool import KVPool
from atomesh.engine.execution.model_runner import ModelRunner, RunBatch
from atomesh.engine.sampling.logprobs import prompt_logprobs
from atomesh.engine.sampling.sampler import NoToken, Sampler, SampleRow
from atomesh.engine.structured_output.mask_maker import MaskMaker
from atomesh.engine.structured_output.step_masks import StepMasks
from atomesh.protocol.generation import TokenLogprobs

LOGIT_BYTES = 64 * 2**20  # of float32 logits at once
NOT_FINITE = "no token can be chosen: the model's logits are not finite"
FORBIDDEN = (
    "no token can be chosen: the request's own constraints (its grammar, allowed_token_ids, min_tokens, "
    "bad_words, logit_bias, penalties) leave none; loosen them"
)


class LocalExecutor:
    """Implements `engine.executor.Executor`."""

    def __init__(self, runner: ModelRunner, pool: KVPool, vocab_size: int) -> None:
        self._runner = runner
        self._pool = pool
        self._sampler = Sampler(vocab_size)
        self._masks = MaskMaker(vocab_size)
        self._rows_at_once = max(1, LOGIT_BYTES // (4 * vocab_size))

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> StepResult:
        if batch.copies:
            sources, targets = zip(*((copy.source, copy.target) for copy in batch.copies), strict=True)
            self._pool.paged.copy_blocks(sources, targets)
        masks = self._masks.begin(batch.sequences)
        run = self._runner.run(batch)
        foreseen = {
            sequence.sequence_id: self._prompt_logprobs(sequence, run.hidden[span.first_row :])
            for sequence, span in zip(batch.sequences, run.spans, strict=True)
            if sequence.sampling.prompt_logprobs is not None
        }
        sampled = self._sample(batch.sequences, run, masks)
        return StepResult(
            {
                sequence.sequence_id: _outcome(
                    sequence,
                    sampled.get(sequence.sequence_id, ()),
                    foreseen.get(sequence.sequence_id, ()),
                    masks,
                )
                for sequence in batch.sequences
            }
        )

    def close(self) -> None:
        self._masks.close()
        self._pool.close()

    def _sample(
        self, sequences: Sequence[ScheduledSequence], run: RunBatch, masks: StepMasks
    ) -> dict[int, tuple[SampledToken | NoToken, ...]]:
        """By sequence id; only a sequence's last row is ever sampled from."""
        last_rows = [
            (sequence, span.first_row + span.num_rows - 1)
            for sequence, span in zip(sequences, run.spans, strict=True)
            if sequence.choices and masks.failure(sequence) is None
        ]
        found: dict[int, tuple[SampledToken | NoToken, ...]] = {}
        for start in range(0, len(last_rows), self._rows_at_once):
            chunk = last_rows[start : start + self._rows_at_once]
            rows = torch.tensor([row for _, row in chunk], device=run.hidden.device)
            logits = self._runner.logits(run.hidden[rows])
            wanted = _sample_rows([sequence for sequence, _ in chunk], masks)
            tokens = iter(self._sampler.sample(logits, wanted))
            for sequence, _ in chunk:
                found[sequence.sequence_id] = tuple(next(tokens) for _ in sequence.choices)
        return found

    def _prompt_logprobs(
        self, sequence: ScheduledSequence, hidden: torch.Tensor
    ) -> tuple[TokenLogprobs, ...]:
        """For the prompt tokens that the sequence's rows, the first of `hidden`, foresee."""
        targets = sequence.prompt_token_ids[sequence.start + 1 : sequence.end + 1]
        top = sequence.sampling.prompt_logprobs or 0
        entries: list[TokenLogprobs] = []
        for start in range(0, len(targets), self._rows_at_once):
            chunk = targets[start : start + self._rows_at_once]
            entries += prompt_logprobs(self._runner.logits(hidden[start : start + len(chunk)]), chunk, top)
        return tuple(entries)


def _sample_rows(sequences: Sequence[ScheduledSequence], masks: StepMasks) -> list[SampleRow]:
    rows = []
    for row, sequence in enumerate(sequences):
        allowed = masks.allowed(sequence)
        spec, mask = sequence.sampling, None
        if allowed is not None:
            mask = allowed.mask
            spec = replace(spec, min_tokens=0) if allowed.is_over else spec
        history = (sequence.prompt_token_ids, sequence.output_token_ids)
        rows += [SampleRow(row, spec, choice, *history, mask) for choice in sequence.choices]
    return rows


def _outcome(
    sequence: ScheduledSequence,
    sampled: tuple[SampledToken | NoToken, ...],
    foreseen: tuple[TokenLogprobs, ...],
    masks: StepMasks,
) -> SequenceOutcome:
    if NoToken.NOT_FINITE in sampled or not all(math.isfinite(entry.logprob) for entry in foreseen):
        return SequenceOutcome(error=NOT_FINITE)
    if (failure := masks.failure(sequence)) is not None:
        return SequenceOutcome(error=failure, is_own_fault=True)
    if NoToken.FORBIDDEN in sampled:
        return SequenceOutcome(error=FORBIDDEN, is_own_fault=True)
    tokens = tuple(token for token in sampled if isinstance(token, SampledToken))
    return SequenceOutcome(sampled=masks.settle(sequence, tokens), prompt_logprobs=foreseen)
