"""Where a weight lies in a model file and where it goes in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from atomesh.engine.kernels.packed_matrix import PackedMatrix, as_block_encoding
from atomesh.engine.kernels.packing_plan import PackingPlan


class TensorSource(Protocol):
    """Weights by their Hugging Face names."""

    def read_into(self, name: str, out: torch.Tensor) -> None: ...

    def encoding(self, name: str) -> str: ...

    def rows(self, name: str) -> Iterator[torch.Tensor]:
        """All rows of a matrix, in order, some at a time, of any float dtype."""
        ...

    def block_rows(self, name: str) -> Iterator[torch.Tensor]:
        """The same as the bytes that the file has of them, [rows, bytes]."""
        ...


class Slot(Protocol):
    """The tensor of a model file called `name` has `shape` and goes to one place."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def fill(self, source: TensorSource) -> None: ...


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Fills `target`, which may be a part of a fused matrix.

    `offset` is added after reading: Gemma's norms multiply by 1 + weight.
    """

    name: str
    target: torch.Tensor
    offset: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.target.shape)

    def fill(self, source: TensorSource) -> None:
        source.read_into(self.name, self.target)
        if self.offset:
            self.target.add_(self.offset)


@dataclass(frozen=True, slots=True)
class PackedSlot:
    """Becomes `count` outputs of a packed matrix, from `first` on, a bounded part of them at a time."""

    name: str
    matrix: PackedMatrix
    first: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, self.matrix.shape.inputs)

    def fill(self, source: TensorSource) -> None:
        blocks = as_block_encoding(self.matrix.shape, source.encoding(self.name))
        at = self.first
        for rows in source.rows(self.name) if blocks is None else source.block_rows(self.name):
            if blocks is None:
                self.matrix.pack(at, rows)
            else:
                self.matrix.pack_blocks(at, rows, blocks)
            at += rows.shape[0]


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Makes the uninitialised tensors that weights are read into.

    `packing` says how matrices are packed for the C++ product; without it they are torch's.
    """

    dtype: torch.dtype
    device: torch.device
    packing: PackingPlan | None = None

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def empty_float32(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)
