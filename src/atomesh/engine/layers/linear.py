"""Matrix products, with several weights of a file fused into one where they share their input."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from atomesh.engine.layers.weight_slot import TensorFactory, WeightSlot


@dataclass(frozen=True, slots=True)
class LinearPart:
    """A weight of `size` output rows, in the file `name` + ".weight", with `name` + ".bias" if `bias`."""

    name: str
    size: int
    bias: bool = False


class Linear:
    """y = x Wᵀ + b, where W stacks the rows of the parts; b is zero for a part that has none."""

    def __init__(self, parts: tuple[LinearPart, ...], input_size: int, factory: TensorFactory) -> None:
        self._parts = parts
        rows = sum(part.size for part in parts)
        self.weight = factory.empty(rows, input_size)
        self.bias = factory.empty(rows).zero_() if any(part.bias for part in parts) else None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """[tokens, input size], of any float dtype, to [tokens, rows] in the weight's."""
        return functional.linear(inputs.to(self.weight.dtype), self.weight, self.bias)

    def slots(self) -> Iterator[WeightSlot]:
        first = 0
        for part in self._parts:
            rows = slice(first, first + part.size)
            yield WeightSlot(f"{part.name}.weight", self.weight[rows])
            if part.bias and self.bias is not None:
                yield WeightSlot(f"{part.name}.bias", self.bias[rows])
            first += part.size
