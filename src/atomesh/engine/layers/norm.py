"""Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467)."""

from collections.abc import Iterator

import torch

from atomesh.engine.layers.weight_slot import TensorFactory, WeightSlot


class RMSNorm:
    """Over the last dimension, of `size`; any float in, float32 out. `offset` is added to the weight."""

    def __init__(
        self, name: str, size: int, eps: float, factory: TensorFactory, *, offset: float = 0.0
    ) -> None:
        self._name = name
        self._eps = eps
        self._offset = offset
        self._weight = factory.empty_float32(size)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        wide = inputs.float()
        scale = wide.pow(2).mean(-1, keepdim=True).add_(self._eps).rsqrt_()
        return (wide * scale).mul_(self._weight)

    def slots(self) -> Iterator[WeightSlot]:
        yield WeightSlot(f"{self._name}.weight", self._weight, self._offset)
