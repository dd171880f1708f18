"""The gated feed-forward layer (Shazeer, arXiv:2002.05202)."""

from collections.abc import Iterator

import torch
from torch.nn import functional

from atomesh.engine.layers.linear import Linear, LinearPart
from atomesh.engine.layers.weight_slot import Slot, TensorFactory
from atomesh.model_files.config import ModelConfig


class GatedMLP:
    def __init__(self, name: str, config: ModelConfig, factory: TensorFactory) -> None:
        size, bias = config.intermediate_size, config.mlp_bias
        self._size = size
        self._use_gelu = config.activation == "gelu_tanh"
        self._gate_up = Linear(
            (LinearPart(f"{name}.gate_proj", size, bias), LinearPart(f"{name}.up_proj", size, bias)),
            config.hidden_size,
            factory,
        )
        self._down = Linear((LinearPart(f"{name}.down_proj", config.hidden_size, bias),), size, factory)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        gate_up = self._gate_up(inputs)
        gate, up = gate_up[:, : self._size], gate_up[:, self._size :]
        activated = functional.gelu(gate, approximate="tanh") if self._use_gelu else functional.silu(gate)
        return self._down(activated.mul_(up))

    def slots(self) -> Iterator[Slot]:
        yield from self._gate_up.slots()
        yield from self._down.slots()
