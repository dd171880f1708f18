"""Attention over gathered keys and values, by PyTorch's fused kernel wherever that can do it."""

import torch
from torch.nn import functional

from atomesh.engine.attention.shape import AttentionShape

NEVER = float("-inf")


def dense_attention(
    shape: AttentionShape,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """`query` […, m, head_dim]; `keys`, `values` […, n, head_dim]; `mask`, added to the scores, […, m, n]."""
    if shape.softcap is None:
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=shape.scale)
    scores = (query @ keys.transpose(-1, -2)).float() * shape.scale
    scores = torch.tanh(scores / shape.softcap) * shape.softcap
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1).to(values.dtype) @ values


class BandMasks:
    """Additive masks of a causal band, cut out of one matrix a window, which grows to the longest context.

    The matrix has one column a position and its last row sees up to the last column, so that a tile of the
    last m queries over the last n keys is its lower right corner.
    """

    def __init__(self, tile_rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tile_rows = tile_rows
        self._dtype = dtype
        self._device = device
        self._bands: dict[int | None, torch.Tensor] = {}

    def tile(self, window: int | None, num_queries: int, num_keys: int) -> torch.Tensor:
        """[num_queries, num_keys]: 0 where the last `num_queries` positions see, −∞ elsewhere."""
        band = self._bands.get(window)
        if band is None or band.shape[1] < num_keys:
            grown = max(num_keys, self.tile_rows, 0 if band is None else 2 * band.shape[1])
            band = self._bands[window] = self._make(window, grown)
        return band[self.tile_rows - num_queries :, band.shape[1] - num_keys :]

    def _make(self, window: int | None, width: int) -> torch.Tensor:
        query = torch.arange(width - self.tile_rows, width, device=self._device)[:, None]
        key = torch.arange(width, device=self._device)
        hidden = key > query
        if window is not None:
            hidden |= key <= query - window
        return torch.zeros(hidden.shape, dtype=self._dtype, device=self._device).masked_fill_(hidden, NEVER)
