"""Matrix products, with several weights of a file fused into one where they share their input."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atomesh.engine.layers.weight_matrix import make_matrix
from atomesh.engine.layers.weight_slot import Slot, TensorFactory, WeightSlot


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
        self._matrix = make_matrix(
            factory,
            [f"{part.name}.weight" for part in parts],
            sum(part.size for part in parts),
            input_size,
            bias=any(part.bias for part in parts),
        )

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """[tokens, input size], of any float dtype, to [tokens, rows] in the model's."""
        return self._matrix.multiply(inputs)

    def slots(self) -> Iterator[Slot]:
        first, bias = 0, self._matrix.bias
        for part in self._parts:
            yield self._matrix.slot(f"{part.name}.weight", first, part.size)
            if part.bias and bias is not None:
                yield WeightSlot(f"{part.name}.bias", bias[first : first + part.size])
            first += part.size
