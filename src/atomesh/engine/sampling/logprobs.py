"""Log-probabilities under the model's own distribution, before any constraint or temperature."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atomesh.engine.sampling.vocab_blocks import BLOCK, into_blocks, largest_values
from atomesh.protocol.generation import TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
    """For each row of `logits` [rows, vocab]: its token's logprob and rank, and the `top` most likely tokens.

    The logits may be of any float dtype. Tokens of equal logits rank by id, the lower first; so
    `top[rank - 1]` is the token itself whenever rank ≤ top, with the same float.
    """
    if not token_ids:
        return []
    values = logits.float()
    targets = torch.tensor(token_ids, device=values.device).unsqueeze(1)
    ranks = _ranks(values, targets)
    top_ids = _top_ids(values, min(top, values.shape[1]))
    asked = torch.cat((targets, top_ids), dim=1)
    logprobs = values.log_softmax(dim=-1).gather(1, asked)
    return [
        TokenLogprobs(token_id, row[0], rank, list(zip(ids, row[1:], strict=True)))
        for token_id, rank, ids, row in zip(
            token_ids, ranks.tolist(), top_ids.tolist(), logprobs.tolist(), strict=True
        )
    ]


def prompt_logprobs(logits: Tensor, targets: Sequence[int], top: int) -> list[TokenLogprobs]:
    """One entry a row: row i of `logits` [rows, vocab] foresees prompt token `targets[i]`.

    Needs room for a few float32 copies of `logits`: long prompts come in chunks of rows.
    """
    return token_logprobs(logits, targets, top)


def _ranks(values: Tensor, targets: Tensor) -> Tensor:
    own = values.gather(1, targets)
    blocks = into_blocks(values, padding=-torch.inf)
    row, block = (blocks.amax(dim=-1) >= own).nonzero().unbind(1)
    inside, ids = blocks[row, block], block.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=values.device)
    ahead = (inside > own[row]) | ((inside == own[row]) & (ids < targets[row]))
    return torch.ones_like(targets[:, 0]).index_add_(0, row, ahead.sum(dim=-1))


def _top_ids(values: Tensor, top: int) -> Tensor:
    """The ids of each row's `top` largest values, best first, among equals the lower id: [rows, top]."""
    if top == 0:
        return torch.empty((len(values), 0), dtype=torch.long, device=values.device)
    largest, ids = largest_values(values, min(top + 1, values.shape[1]))
    has_ties = (largest[:, 1:] == largest[:, :-1]).any(dim=-1)
    ids = ids[:, :top]
    for row in has_ties.nonzero().squeeze(1).tolist():
        candidates = (values[row] >= largest[row, top - 1]).nonzero().squeeze(1)
        order = values[row][candidates].sort(descending=True, stable=True).indices
        ids[row] = candidates[order[:top]]
    return ids
