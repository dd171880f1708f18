"""A matrix of weights to multiply by and to look rows up in: torch's, or packed for the C++ product."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional

from atomesh.engine.kernels.packed_matrix import PackedMatrix
from atomesh.engine.layers.weight_slot import PackedSlot, Slot, TensorFactory, WeightSlot


class WeightMatrix(Protocol):
    """W [outputs, inputs], with or without a bias [outputs]."""

    bias: torch.Tensor | None

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] of any float dtype to x Wᵀ + b, [rows, outputs] in the model's."""
        ...

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """The same, in float32 where that costs nothing."""
        ...

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """[count, inputs] of float32: the weights of the chosen outputs."""
        ...

    def slot(self, name: str, first: int, count: int) -> Slot:
        """For a file's weight that is `count` outputs of this one, from `first` on."""
        ...


class DenseMatrix:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.bias = bias
        self._weight = weight

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        return functional.linear(inputs.to(self._weight.dtype), self._weight, self.bias)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.multiply(inputs)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        return functional.embedding(outputs, self._weight).float()

    def slot(self, name: str, first: int, count: int) -> Slot:
        return WeightSlot(name, self._weight[first : first + count])


class KernelMatrix:
    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype) -> None:
        self.bias = matrix.bias
        self._matrix = matrix
        self._dtype = dtype

    def multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._matrix.multiply(inputs, self._dtype)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._matrix.multiply(inputs, torch.float32)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        return self._matrix.rows(outputs)

    def slot(self, name: str, first: int, count: int) -> Slot:
        return PackedSlot(name, self._matrix, first, count)


def make_matrix(
    factory: TensorFactory, names: Sequence[str], outputs: int, inputs: int, *, bias: bool = False
) -> WeightMatrix:
    """For the file's weights of those names, one above the other; the bias is zero until it is read."""
    plan = factory.packing
    if plan is None:
        zeros = factory.empty(outputs).zero_() if bias else None
        return DenseMatrix(factory.empty(outputs, inputs), zeros)
    wide_zeros = factory.empty_float32(outputs).zero_() if bias else None
    shape = plan.shape(names, outputs, inputs)
    return KernelMatrix(PackedMatrix(plan.kernels, shape, plan.threads, wide_zeros), factory.dtype)
