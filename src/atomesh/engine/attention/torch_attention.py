"""Attention of a mixed batch in plain PyTorch: prompts one by one in tiles, single tokens in groups."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from atomesh.engine.attention.dense import NEVER, BandMasks, dense_attention
from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan

TILE_ROWS = 256
MAX_PADDING = 1.25  # a group's longest context over its shortest


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """One sequence's several rows; `parts` [kv_heads, blocks] hold its keys from position `first` on."""

    span: SequenceSpan
    first: int
    parts: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of one row each and of similar length: `parts` [sequences, kv_heads, blocks].

    `batch_rows` is None if the group is the whole batch in its order. Of the slots in `parts`, `seen` are
    all that any sequence sees. If not every sequence sees them all, `mask` [sequences, 1, 1, seen] says so,
    and `foreign` are the rows of the gathered keys that no sequence has written; else both are None.
    """

    batch_rows: torch.Tensor | None
    parts: torch.Tensor
    seen: slice
    mask: torch.Tensor | None = None
    foreign: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    prompts: tuple[PromptPlan, ...]
    groups: tuple[DecodeGroup, ...]


class TorchAttention:
    """Makes the attention of each step, for one model and one pool."""

    def __init__(self, shape: AttentionShape, pool: PagedKV) -> None:
        self._shape = shape
        self._pool = pool
        self._masks = BandMasks(TILE_ROWS, pool.storage.dtype, pool.storage.device)

    def prepare(self, spans: Sequence[SequenceSpan]) -> "TorchBatchAttention":
        plans = {window: self._plan(spans, window) for window in dict.fromkeys(self._shape.windows)}
        return TorchBatchAttention(self._shape, self._pool, self._masks, self._pool.new_rows(spans), plans)

    def _plan(self, spans: Sequence[SequenceSpan], window: int | None) -> WindowPlan:
        singles = [span for span in spans if span.num_rows == 1]
        return WindowPlan(
            prompts=tuple(self._plan_prompt(span, window) for span in spans if span.num_rows > 1),
            groups=tuple(self._plan_group(group, window, len(spans)) for group in _similar(singles, window)),
        )

    def _plan_prompt(self, span: SequenceSpan, window: int | None) -> PromptPlan:
        first_block = _first_visible(span.start, window) // self._pool.block_size
        parts = self._pool.parts(span, first_block).to(self._pool.storage.device)
        return PromptPlan(span, first_block * self._pool.block_size, parts)

    def _plan_group(self, group: Sequence[SequenceSpan], window: int | None, batch_size: int) -> DecodeGroup:
        device, size = self._pool.storage.device, self._pool.block_size
        firsts = [_first_visible(span.start, window) for span in group]
        first_blocks = [first // size for first in firsts]
        begins = [first % size for first in firsts]
        ends = [span.end - block * size for span, block in zip(group, first_blocks, strict=True)]
        num_blocks = -(-max(ends) // size)
        parts = [self._pool.parts(s, block, num_blocks) for s, block in zip(group, first_blocks, strict=True)]
        batch_rows = [span.first_row for span in group]
        is_whole_batch = len(group) == batch_size and batch_rows == list(range(batch_size))
        plan = DecodeGroup(
            batch_rows=None if is_whole_batch else torch.tensor(batch_rows, device=device),
            parts=torch.stack(parts).to(device),
            seen=slice(min(begins), max(ends)),
        )
        is_even = min(begins) == max(begins) and min(ends) == max(ends)
        return plan if is_even else self._with_mask(plan, torch.tensor(begins), torch.tensor(ends))

    def _with_mask(self, plan: DecodeGroup, begins: torch.Tensor, ends: torch.Tensor) -> DecodeGroup:
        """`begins` and `ends`: the slots that each sequence sees."""
        num_sequences, num_heads, num_blocks = plan.parts.shape
        slots = torch.arange(num_blocks * self._pool.block_size)
        beyond = slots >= ends[:, None]
        hidden = (beyond | (slots < begins[:, None]))[:, plan.seen]
        mask = torch.zeros(hidden.shape, dtype=self._pool.storage.dtype).masked_fill_(hidden, NEVER)
        foreign = beyond[:, None].expand(num_sequences, num_heads, -1).reshape(-1).nonzero().squeeze(1)
        device = plan.parts.device
        return replace(plan, mask=mask[:, None, None].to(device), foreign=foreign.to(device))


class TorchBatchAttention:
    def __init__(
        self,
        shape: AttentionShape,
        pool: PagedKV,
        masks: BandMasks,
        new_rows: torch.Tensor,
        plans: dict[int | None, WindowPlan],
    ) -> None:
        self._shape = shape
        self._pool = pool
        self._masks = masks
        self._new_rows = new_rows
        self._plans = plans

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        self._pool.write(layer, self._new_rows, key_value)
        plan = self._plans[self._shape.windows[layer]]
        if not plan.prompts and len(plan.groups) == 1 and plan.groups[0].batch_rows is None:
            return self._attend_group(layer, query, plan.groups[0])
        answer = query.new_empty(query.shape[0], self._shape.num_heads * self._shape.head_dim)
        for prompt in plan.prompts:
            self._attend_prompt(layer, query, prompt, answer)
        for group in plan.groups:
            answer[group.batch_rows] = self._attend_group(layer, query[group.batch_rows], group)
        return answer

    def _attend_group(self, layer: int, query: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        """A key head's query heads stand where queries of one head would: none sees more than another."""
        shape = self._shape
        keys, values = self._pool.gather(layer, group.parts)
        if group.foreign is not None:
            for part in (keys, values):
                part.view(-1, shape.head_dim).index_fill_(0, group.foreign, 0.0)
        keys, values = keys[:, :, group.seen], values[:, :, group.seen]
        grouped = query.reshape(-1, shape.num_kv_heads, shape.group_size, shape.head_dim)
        return dense_attention(shape, grouped, keys, values, group.mask).reshape(query.shape[0], -1)

    def _attend_prompt(
        self, layer: int, query: torch.Tensor, prompt: PromptPlan, answer: torch.Tensor
    ) -> None:
        """A key head stands for a batch entry, so that its query heads share it without a copy."""
        shape, span, window = self._shape, prompt.span, self._shape.windows[layer]
        by_head = (shape.num_kv_heads, shape.group_size)
        keys, values = (
            part[:, None].expand(*by_head, -1, -1) for part in self._pool.gather(layer, prompt.parts)
        )
        for start in range(span.start, span.end, TILE_ROWS):
            end = min(start + TILE_ROWS, span.end)
            seen = slice(_first_visible(start, window) - prompt.first, end - prompt.first)
            rows = slice(span.first_row + start - span.start, span.first_row + end - span.start)
            tile = query[rows].view(-1, *by_head, shape.head_dim).permute(1, 2, 0, 3)
            mask = self._masks.tile(window, end - start, seen.stop - seen.start)
            attended = dense_attention(shape, tile, keys[:, :, seen], values[:, :, seen], mask)
            answer[rows].view(-1, *by_head, shape.head_dim).copy_(attended.permute(2, 0, 1, 3))


def _first_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _similar(spans: Sequence[SequenceSpan], window: int | None) -> list[list[SequenceSpan]]:
    """Groups in which padding to the longest wastes little; spans of one length stay in their order."""
    groups: list[list[SequenceSpan]] = []
    shortest = 0
    for span in sorted(spans, key=lambda span: min(span.end, window or span.end)):
        count = min(span.end, window or span.end)
        if not groups or count > max(shortest * MAX_PADDING, shortest + 16):
            groups.append([])
            shortest = count
        groups[-1].append(span)
    return [sorted(group, key=lambda span: span.first_row) for group in groups]
