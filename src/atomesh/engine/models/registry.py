"""From a family's name to what builds its models; a module is imported when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.decoder import Decoder
from atomesh.model_files.config import Family, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS: dict[Family, str] = {
    "llama": "atomesh.engine.models.llama:build_llama",
    "mistral": "atomesh.engine.models.llama:build_llama",
    "qwen2": "atomesh.engine.models.llama:build_llama",
    "qwen3": "atomesh.engine.models.qwen3:build_qwen3",
    "gemma3": "atomesh.engine.models.gemma3:build_gemma3",
}


def build_model(config: ModelConfig, factory: TensorFactory) -> Decoder:
    """A model with uninitialised weights, to be filled through its `slots`."""
    module, _, name = MODELS[config.family].partition(":")
    build: Callable[[ModelConfig, TensorFactory], Decoder] = getattr(import_module(module), name)
    return build(config, factory)
