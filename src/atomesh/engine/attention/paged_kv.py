"""Keys and values in fixed-size blocks, and the one place that knows where in the pool a token's lie."""

from collections.abc import Sequence

import torch

from atomesh.engine.attention.shape import SequenceSpan


class PagedKV:
    """Over `storage` [num_blocks, layers, 2, kv_heads, block_size, head_dim]: keys first, values second.

    Written token by token, in rows of one head's head_dim elements: a token's key of head h in layer l lies
    at block · rows_per_block + l · rows_per_layer + h · block_size + offset, its value half a layer further.
    Read block by block, in parts of one head's block_size · head_dim elements, which copies twice as fast.
    The layer's part is a view's start, so that one set of numbers serves every layer.
    """

    def __init__(self, storage: torch.Tensor) -> None:
        num_layers, _, num_kv_heads, block_size, head_dim = storage.shape[1:]
        self.storage = storage
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        rows_per_layer = 2 * num_kv_heads * block_size
        self._rows_per_block = num_layers * rows_per_layer
        rows = storage.view(-1, head_dim)
        self._new_rows = [rows[layer * rows_per_layer :] for layer in range(num_layers)]
        self._row_starts = torch.arange(2 * num_kv_heads) * block_size
        parts = storage.view(-1, block_size * head_dim)
        self._keys = [parts[layer * 2 * num_kv_heads :] for layer in range(num_layers)]
        self._values = [part[num_kv_heads:] for part in self._keys]
        self._parts_per_block = num_layers * 2 * num_kv_heads

    def new_rows(self, spans: Sequence[SequenceSpan]) -> torch.Tensor:
        """Where `write` puts the spans' tokens: [tokens, 2 · kv_heads]."""
        slots = torch.cat([self._slots(span) for span in spans])
        return (slots[:, None] + self._row_starts).to(self.storage.device)

    def parts(self, span: SequenceSpan, first_block: int, padded_to: int = 0) -> torch.Tensor:
        """What `gather` takes for the span's blocks from its `first_block` on: [kv_heads, blocks].

        Padded on the right with the last of them; the slots past the span's end may hold anything.
        """
        blocks = torch.tensor(span.blocks[first_block : -(-span.end // self.block_size)])
        if padded_to > len(blocks):
            blocks = torch.cat((blocks, blocks[-1:].expand(padded_to - len(blocks))))
        return torch.arange(self.num_kv_heads)[:, None] + blocks * self._parts_per_block

    def copy_blocks(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Whole blocks, all layers; every source is read before any target is written."""
        device = self.storage.device
        copied = self.storage.index_select(0, torch.tensor(sources, device=device))
        self.storage.index_copy_(0, torch.tensor(targets, device=device), copied)

    def write(self, layer: int, rows: torch.Tensor, key_value: torch.Tensor) -> None:
        """`key_value` [tokens, 2 · kv_heads, head_dim] to where `new_rows` says."""
        self._new_rows[layer].index_put_((rows,), key_value)

    def gather(self, layer: int, parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values of `parts` […, kv_heads, blocks]: […, kv_heads, slots, head_dim]."""
        flat = parts.view(-1)
        shape = (*parts.shape[:-1], parts.shape[-1] * self.block_size, -1)
        keys = self._keys[layer].index_select(0, flat).view(shape)
        return keys, self._values[layer].index_select(0, flat).view(shape)

    def _slots(self, span: SequenceSpan) -> torch.Tensor:
        """Row numbers, without the head's part, of the span's own positions."""
        size = self.block_size
        lowest = span.start // size
        starts = torch.tensor(span.blocks[lowest : -(-span.end // size)]) * self._rows_per_block
        slots = (starts[:, None] + torch.arange(size)).view(-1)
        return slots[span.start - lowest * size : span.end - lowest * size]
