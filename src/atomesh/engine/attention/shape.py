"""Which tokens of a batch belong together, and how a model's attention looks."""

from collections.abc import Sequence
from dataclasses import dataclass

from atomesh.model_files.config import ModelConfig


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Rows `first_row` … of a flat batch are one sequence's positions `start` … `end` − 1.

    The KV of positions 0 … `end` − 1 lies in `blocks`, the batch's own as soon as it is written.
    """

    first_row: int
    start: int
    end: int
    blocks: Sequence[int]

    @property
    def num_rows(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """`windows[i]`: how many tokens a token of layer i sees, itself included; None for all before it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    windows: tuple[int | None, ...]

    @classmethod
    def of(cls, config: ModelConfig) -> "AttentionShape":
        scale = config.attention_scale
        return cls(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5 if scale is None else scale,
            softcap=config.attention_softcap,
            windows=tuple(config.window(layer) for layer in range(config.num_layers)),
        )

    @property
    def group_size(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads
