"""Gemma 3, text: norms before and after each half of a layer, two rotary bases (arXiv:2503.19786)."""

import math
from collections.abc import Iterator

import torch

from atomesh.engine.layers.forward_batch import BatchAttention
from atomesh.engine.layers.mlp import GatedMLP
from atomesh.engine.layers.norm import RMSNorm
from atomesh.engine.layers.rotary import RotaryEmbedding, RotaryRows
from atomesh.engine.layers.self_attention import HeadNorms, SelfAttention
from atomesh.engine.layers.weight_slot import Slot, TensorFactory
from atomesh.engine.models.decoder import Decoder, DecoderParts
from atomesh.engine.models.llama import attention_name, layer_name
from atomesh.model_files.config import ModelConfig

NORM_OFFSET = 1.0


class Gemma3Layer:
    def __init__(self, layer: int, config: ModelConfig, factory: TensorFactory) -> None:
        head_norms = HeadNorms(attention_name(layer), config, factory, offset=NORM_OFFSET)
        self._attention = SelfAttention(attention_name(layer), layer, config, factory, head_norms)
        self._mlp = GatedMLP(f"{layer_name(layer)}.mlp", config, factory)
        self._before_attention, self._after_attention, self._before_mlp, self._after_mlp = (
            _norm(f"{layer_name(layer)}.{name}", config, factory)
            for name in (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        )

    def __call__(self, hidden: torch.Tensor, rotary: RotaryRows, attention: BatchAttention) -> torch.Tensor:
        hidden += self._after_attention(self._attention(self._before_attention(hidden), rotary, attention))
        hidden += self._after_mlp(self._mlp(self._before_mlp(hidden)))
        return hidden

    def slots(self) -> Iterator[Slot]:
        norms = (self._before_attention, self._after_attention, self._before_mlp, self._after_mlp)
        for part in (self._attention, self._mlp, *norms):
            yield from part.slots()


def build_gemma3(config: ModelConfig, factory: TensorFactory) -> Decoder:
    full = RotaryEmbedding(config.head_dim, config.rope_theta, config.rope_scaling, factory.device)
    local_theta = config.rope_local_theta if config.rope_local_theta is not None else config.rope_theta
    sliding = RotaryEmbedding(config.head_dim, local_theta, None, factory.device)
    layers = range(config.num_layers)
    return Decoder(
        config,
        factory,
        DecoderParts(
            layers=[Gemma3Layer(layer, config, factory) for layer in layers],
            rotary=[full if config.window(layer) is None else sliding for layer in layers],
            norm=_norm("model.norm", config, factory),
            embedding_scale=math.sqrt(config.hidden_size),
        ),
    )


def _norm(name: str, config: ModelConfig, factory: TensorFactory) -> RMSNorm:
    return RMSNorm(name, config.hidden_size, config.norm_eps, factory, offset=NORM_OFFSET)
