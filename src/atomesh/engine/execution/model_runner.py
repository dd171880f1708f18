"""From a scheduled batch to hidden states: flatten it, plan its attention, run the model."""

from dataclasses import dataclass
from itertools import accumulate, chain

import torch

from atomesh.engine.attention.registry import Attention
from atomesh.engine.attention.shape import SequenceSpan
from atomesh.engine.core.batch import ScheduledBatch
from atomesh.engine.layers.forward_batch import ForwardBatch
from atomesh.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class RunBatch:
    """`hidden` [tokens, hidden size]; sequence i of the batch has the rows of `spans[i]`."""

    hidden: torch.Tensor
    spans: tuple[SequenceSpan, ...]


class ModelRunner:
    def __init__(self, model: Decoder, attention: Attention, device: torch.device) -> None:
        self._model = model
        self._attention = attention
        self._device = device

    def run(self, batch: ScheduledBatch) -> RunBatch:
        """Compute every token of the batch and write its KV."""
        spans = spans_of(batch)
        token_ids = list(chain.from_iterable(sequence.token_ids for sequence in batch.sequences))
        positions = torch.cat([torch.arange(span.start, span.end) for span in spans])
        forward = ForwardBatch(
            token_ids=torch.tensor(token_ids).to(self._device),
            positions=positions.to(self._device),
            attention=self._attention.prepare(spans),
        )
        return RunBatch(self._model.hidden_states(forward), spans)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocabulary] for chosen rows of a batch's hidden states."""
        return self._model.logits(hidden)


def spans_of(batch: ScheduledBatch) -> tuple[SequenceSpan, ...]:
    lengths = [len(sequence.token_ids) for sequence in batch.sequences]
    first_rows = accumulate(lengths[:-1], initial=0)
    return tuple(
        SequenceSpan(first_row, sequence.start, sequence.end, sequence.block_table)
        for first_row, sequence in zip(first_rows, batch.sequences, strict=True)
    )
