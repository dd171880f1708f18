"""Where a weight lies in a model file and where it goes in memory."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The tensor of a model file called `name` fills `target`, which may be a part of a fused matrix.

    `offset` is added after reading: Gemma's norms multiply by 1 + weight.
    """

    name: str
    target: torch.Tensor
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Makes the uninitialised tensors that weights are read into."""

    dtype: torch.dtype
    device: torch.device

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def empty_float32(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.device)
