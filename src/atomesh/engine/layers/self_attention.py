"""Self-attention: fused projections, optional norms on queries and keys, rotation, and the way out."""

from collections.abc import Iterator

import torch

from atomesh.engine.layers.forward_batch import BatchAttention
from atomesh.engine.layers.linear import Linear, LinearPart
from atomesh.engine.layers.norm import RMSNorm
from atomesh.engine.layers.rotary import RotaryRows
from atomesh.engine.layers.weight_slot import Slot, TensorFactory
from atomesh.model_files.config import ModelConfig


class HeadNorms:
    """Norms over head_dim, one for all query heads and one for all key heads (Qwen 3, Gemma 3)."""

    def __init__(
        self, name: str, config: ModelConfig, factory: TensorFactory, *, offset: float = 0.0
    ) -> None:
        self._num_heads = config.num_heads
        self._query = RMSNorm(f"{name}.q_norm", config.head_dim, config.norm_eps, factory, offset=offset)
        self._key = RMSNorm(f"{name}.k_norm", config.head_dim, config.norm_eps, factory, offset=offset)

    def normalise_(self, query_key: torch.Tensor) -> None:
        """[tokens, heads + kv_heads, head_dim], in place."""
        query, key = query_key[:, : self._num_heads], query_key[:, self._num_heads :]
        query.copy_(self._query(query))
        key.copy_(self._key(key))

    def slots(self) -> Iterator[Slot]:
        yield from self._query.slots()
        yield from self._key.slots()


class NoHeadNorms:
    def normalise_(self, query_key: torch.Tensor) -> None:
        pass

    def slots(self) -> Iterator[Slot]:
        yield from ()


class SelfAttention:
    def __init__(
        self,
        name: str,
        layer: int,
        config: ModelConfig,
        factory: TensorFactory,
        head_norms: HeadNorms | NoHeadNorms,
    ) -> None:
        self._layer = layer
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._head_dim = config.head_dim
        self._head_norms = head_norms
        query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self._qkv = Linear(
            (
                LinearPart(f"{name}.q_proj", query, config.attention_bias),
                LinearPart(f"{name}.k_proj", key_value, config.attention_bias),
                LinearPart(f"{name}.v_proj", key_value, config.attention_bias),
            ),
            config.hidden_size,
            factory,
        )
        self._output = Linear(
            (LinearPart(f"{name}.o_proj", config.hidden_size, config.output_bias),), query, factory
        )

    def __call__(self, inputs: torch.Tensor, rotary: RotaryRows, attention: BatchAttention) -> torch.Tensor:
        heads = self._qkv(inputs).view(inputs.shape[0], -1, self._head_dim)
        query_key = heads[:, : self._num_rotated]
        self._head_norms.normalise_(query_key)
        rotary.rotate_(query_key)
        attended = attention.attend(self._layer, heads[:, : self._num_heads], heads[:, self._num_heads :])
        return self._output(attended)

    def slots(self) -> Iterator[Slot]:
        yield from self._qkv.slots()
        yield from self._output.slots()
        yield from self._head_norms.slots()
