"""Attention as its definition reads, token by token: what every faster version is tested against."""

from collections.abc import Sequence

import torch

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan


class ReferenceAttention:
    """One step's attention, in float64; slow on purpose."""

    def __init__(self, shape: AttentionShape, pool: PagedKV, spans: Sequence[SequenceSpan]) -> None:
        self._shape = shape
        self._pool = pool
        self._spans = spans

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        for span in self._spans:
            for row in range(span.num_rows):
                block, offset = self._place(span, span.start + row)
                heads = key_value[span.first_row + row].view(2, self._shape.num_kv_heads, -1)
                self._pool.storage[block, layer, :, :, offset] = heads
        answers = [
            self._attend_token(layer, query[span.first_row + row], span, span.start + row)
            for span in self._spans
            for row in range(span.num_rows)
        ]
        return torch.stack(answers).to(query.dtype)

    def _attend_token(
        self, layer: int, query: torch.Tensor, span: SequenceSpan, position: int
    ) -> torch.Tensor:
        shape, window = self._shape, self._shape.windows[layer]
        first = 0 if window is None else max(0, position - window + 1)
        places = [self._place(span, seen) for seen in range(first, position + 1)]
        seen = torch.stack([self._pool.storage[block, layer, :, :, offset] for block, offset in places])
        keys, values = seen.double().repeat_interleave(shape.group_size, dim=2).unbind(1)
        scores = torch.einsum("hd,nhd->hn", query.double(), keys) * shape.scale
        if shape.softcap is not None:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values).reshape(-1)

    def _place(self, span: SequenceSpan, position: int) -> tuple[int, int]:
        return span.blocks[position // self._pool.block_size], position % self._pool.block_size
