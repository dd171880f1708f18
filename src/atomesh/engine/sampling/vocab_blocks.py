"""The vocabulary in blocks of 256 tokens: a block's maximum or sum often spares a look at its tokens."""

import torch
from torch import Tensor

BLOCK = 256


def into_blocks(rows: Tensor, padding: float) -> Tensor:
    """[rows, vocab] → [rows, blocks, 256], without a copy where the vocabulary is a multiple of 256."""
    missing = -rows.shape[1] % BLOCK
    if missing:
        rows = torch.nn.functional.pad(rows, (0, missing), value=padding)
    return rows.reshape(rows.shape[0], -1, BLOCK)


def argmax(rows: Tensor) -> Tensor:
    """The id of each row's largest value, the lowest among equals: [rows, vocab] → [rows]."""
    blocks = into_blocks(rows, padding=-torch.inf)
    best_block = blocks.amax(dim=-1).argmax(dim=-1)
    inside = blocks[torch.arange(len(rows), device=rows.device), best_block].argmax(dim=-1)
    return best_block * BLOCK + inside


def largest_values(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each row's `k` largest values, descending, and their ids, equals in any order: [rows, k] twice."""
    blocks = into_blocks(rows, padding=-torch.inf)
    if k >= blocks.shape[1]:
        values, ids = rows.topk(k, dim=-1)
        return values, ids
    block_ids = blocks.amax(dim=-1).topk(k, dim=-1).indices.unsqueeze(-1)  # no other block can hold one
    inside = blocks.gather(1, block_ids.expand(-1, -1, BLOCK)).flatten(1)
    values, positions = inside.topk(k, dim=-1)
    return values, block_ids.squeeze(-1).gather(1, positions // BLOCK) * BLOCK + positions % BLOCK


def invert_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The id at which each row's running sum first exceeds its share `uniforms` in [0, 1) of the whole.

    `weights` [rows, vocab] are not negative and each row's sum is positive; `uniforms` [rows] are float64.
    A weight of zero is never chosen. The work on a row does not depend on the other rows.
    """
    blocks = into_blocks(weights, padding=0.0)
    block_cdf = blocks.sum(dim=-1).double().cumsum(dim=-1)
    targets = uniforms.unsqueeze(1) * block_cdf[:, -1:]
    block_ids = torch.searchsorted(block_cdf, targets, right=True)
    before = torch.where(block_ids > 0, block_cdf.gather(1, (block_ids - 1).clamp(min=0)), 0.0)
    inside = blocks[torch.arange(len(weights), device=weights.device), block_ids.squeeze(1)]
    inside_cdf = inside.double().cumsum(dim=-1)
    offsets = torch.searchsorted(inside_cdf, targets - before, right=True)
    # A block's two sums may differ by rounding.
    last_positive = torch.searchsorted(inside_cdf, inside_cdf[:, -1:].contiguous())
    return (block_ids * BLOCK + torch.minimum(offsets, last_positive)).squeeze(1)
