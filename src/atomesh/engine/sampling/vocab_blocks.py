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


def noise_per_row(vocab_size: int) -> int:
    """How many waiting times `race` needs for one row."""
    return -(-vocab_size // BLOCK) + BLOCK


def race(weights: Tensor, waits: Tensor) -> Tensor:
    """One id of each row, drawn with the probability of its share in the row's sum: [rows, vocab] → [rows].

    `weights` are not negative and each row's sum is positive; `waits` [rows, noise_per_row(vocab)] are
    independent exponential variables. First the blocks race, each as fast as it is heavy, then the tokens of
    the winning one (the minimum of exponential variables of given rates: Devroye, Non-Uniform Random Variate
    Generation, 1986, ch. IV). Unlike along a running sum, where each token adds a border, only a dead heat
    lets rounding decide. A weight of zero never wins. The work on a row does not depend on the other rows.
    """
    blocks = into_blocks(weights, padding=0.0)
    num_blocks = blocks.shape[1]
    block_ids = (blocks.sum(dim=-1).double() / waits[:, :num_blocks]).argmax(dim=-1)
    inside = blocks[torch.arange(len(weights), device=weights.device), block_ids].double()
    return block_ids * BLOCK + (inside / waits[:, num_blocks:]).argmax(dim=-1)
