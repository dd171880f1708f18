"""What a model sees of one step: a flat list of tokens, and a door to the KV of each."""

from dataclasses import dataclass
from typing import Protocol

import torch


class BatchAttention(Protocol):
    """Attention of one step, over the paged KV of all its sequences."""

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """Keep the new tokens' keys and values, then attend to all that each token may see.

        `query` [tokens, heads, head_dim] and `key_value` [tokens, 2 · kv_heads, head_dim], keys first, are
        rotated already. Returns [tokens, heads · head_dim].
        """
        ...


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """`token_ids` and `positions` [tokens], sequence after sequence."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    attention: BatchAttention
