"""Llama 2 and 3, SmolLM2, Mistral (its windows come with the attention) and Qwen 2 (biases on q, k and v).

Touvron et al., arXiv:2302.13971; Jiang et al., arXiv:2310.06825; Yang et al., arXiv:2407.10671.
"""

from collections.abc import Iterator

import torch

from atomesh.engine.layers.forward_batch import BatchAttention
from atomesh.engine.layers.mlp import GatedMLP
from atomesh.engine.layers.norm import RMSNorm
from atomesh.engine.layers.rotary import RotaryEmbedding, RotaryRows
from atomesh.engine.layers.self_attention import HeadNorms, NoHeadNorms, SelfAttention
from atomesh.engine.layers.weight_slot import Slot, TensorFactory
from atomesh.engine.models.decoder import Decoder, DecoderParts
from atomesh.model_files.config import ModelConfig


class LlamaLayer:
    def __init__(
        self, layer: int, config: ModelConfig, factory: TensorFactory, head_norms: HeadNorms | NoHeadNorms
    ) -> None:
        name, size, eps = layer_name(layer), config.hidden_size, config.norm_eps
        self._attention_norm = RMSNorm(f"{name}.input_layernorm", size, eps, factory)
        self._attention = SelfAttention(attention_name(layer), layer, config, factory, head_norms)
        self._mlp_norm = RMSNorm(f"{name}.post_attention_layernorm", size, eps, factory)
        self._mlp = GatedMLP(f"{name}.mlp", config, factory)

    def __call__(self, hidden: torch.Tensor, rotary: RotaryRows, attention: BatchAttention) -> torch.Tensor:
        hidden += self._attention(self._attention_norm(hidden), rotary, attention)
        hidden += self._mlp(self._mlp_norm(hidden))
        return hidden

    def slots(self) -> Iterator[Slot]:
        for part in (self._attention_norm, self._attention, self._mlp_norm, self._mlp):
            yield from part.slots()


def build_llama(config: ModelConfig, factory: TensorFactory) -> Decoder:
    layers = [LlamaLayer(layer, config, factory, NoHeadNorms()) for layer in range(config.num_layers)]
    return assemble(config, factory, layers)


def assemble(config: ModelConfig, factory: TensorFactory, layers: list[LlamaLayer]) -> Decoder:
    rotary = RotaryEmbedding(config.head_dim, config.rope_theta, config.rope_scaling, factory.device)
    norm = RMSNorm("model.norm", config.hidden_size, config.norm_eps, factory)
    return Decoder(config, factory, DecoderParts(layers, [rotary] * config.num_layers, norm))


def layer_name(layer: int) -> str:
    return f"model.layers.{layer}"


def attention_name(layer: int) -> str:
    return f"{layer_name(layer)}.self_attn"
