"""Qwen 3: Llama's layer with norms on queries and keys (Yang et al., arXiv:2505.09388)."""

from atomesh.engine.layers.self_attention import HeadNorms
from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.decoder import Decoder
from atomesh.engine.models.llama import LlamaLayer, assemble, attention_name
from atomesh.model_files.config import ModelConfig


def build_qwen3(config: ModelConfig, factory: TensorFactory) -> Decoder:
    layers = [
        LlamaLayer(layer, config, factory, HeadNorms(attention_name(layer), config, factory))
        for layer in range(config.num_layers)
    ]
    return assemble(config, factory, layers)
