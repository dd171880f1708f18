"""Keys and values in fixed-size blocks, and the one place that knows where in the pool a token's lie."""

from collections.abc import Sequence

import torch

from atomesh.engine.attention.shape import SequenceSpan


class PagedKV:
    """Over `storage` [num_blocks, layers, 2, kv_heads, block_size, head_dim]: keys first, values second.

    Seen as rows of one head's head_dim elements, a token's key of head h in layer l lies at
    block · rows_per_block + l · rows_per_layer + h · block_size + offset, and its value half a layer further.
    The layer's part is a view's start, so that one set of row numbers serves every layer.
    """

    def __init__(self, storage: torch.Tensor) -> None:
        num_layers, _, num_kv_heads, block_size, head_dim = storage.shape[1:]
        self.storage = storage
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        rows_per_layer = 2 * num_kv_heads * block_size
        self._rows_per_block = num_layers * rows_per_layer
        rows = storage.view(-1, head_dim)
        first = [layer * rows_per_layer for layer in range(num_layers)]
        self._keys = [rows[start:] for start in first]
        self._values = [rows[start + rows_per_layer // 2 :] for start in first]
        self._head_starts = torch.arange(2 * num_kv_heads) * block_size

    def new_rows(self, spans: Sequence[SequenceSpan]) -> torch.Tensor:
        """Where `write` puts the spans' tokens: [tokens, 2 · kv_heads]."""
        slots = torch.cat([self._slots(span.blocks, span.start, span.end) for span in spans])
        return (slots[:, None] + self._head_starts).to(self.storage.device)

    def visible_rows(self, span: SequenceSpan, first: int, padded_to: int | None = None) -> torch.Tensor:
        """Where the keys of positions `first` … end − 1 lie: [kv_heads, count].

        Padded on the right with the span's own first visible token, which is as finite as the span itself.
        """
        slots = self._slots(span.blocks, first, span.end)
        if padded_to is not None and padded_to > len(slots):
            slots = torch.cat((slots, slots[:1].expand(padded_to - len(slots))))
        return self._head_starts[: self.num_kv_heads, None] + slots

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Whole blocks, all layers; every source is read before any target is written."""
        device = self.storage.device
        copied = self.storage.index_select(0, torch.tensor(sources, device=device))
        self.storage.index_copy_(0, torch.tensor(targets, device=device), copied)

    def write(self, layer: int, rows: torch.Tensor, key_value: torch.Tensor) -> None:
        """`key_value` [tokens, 2 · kv_heads, head_dim] to where `new_rows` says."""
        self._keys[layer].index_put_((rows,), key_value)

    def gather(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each of `rows`' shape with head_dim appended."""
        flat = rows.view(-1)
        shape = (*rows.shape, -1)
        keys = self._keys[layer].index_select(0, flat).view(shape)
        return keys, self._values[layer].index_select(0, flat).view(shape)

    def _slots(self, blocks: Sequence[int], first: int, end: int) -> torch.Tensor:
        """Row numbers, without the head's part, of positions `first` … `end` − 1."""
        size = self.block_size
        lowest = first // size
        starts = torch.tensor(blocks[lowest : -(-end // size)]) * self._rows_per_block
        slots = (starts[:, None] + torch.arange(size)).view(-1)
        return slots[first - lowest * size : end - lowest * size]
