"""transformers' own forward pass over a Llama checkpoint that we serve: what our numbers are held against."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from atomesh.engine.weights.source import WeightSource
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.config import ModelConfig


def load_reference(path: Path) -> Any:
    """A transformers model in float32 with the weights of the Llama at `path`, GGUF or directory."""
    checkpoint = open_checkpoint(path)
    model: Any = transformers.LlamaForCausalLM(_llama_config(checkpoint.config))
    source = WeightSource(checkpoint)
    weights = dict(model.named_parameters())
    for name in source.names():
        source.read_into(name, weights[name].data)
    return model.eval()


@torch.inference_mode()
def all_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[tokens, vocabulary], in float32."""
    logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0].float()
    return logits


@torch.inference_mode()
def all_logits_together(model: Any, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """As `all_logits` of each text, at once: what fills up the shorter ones comes after their end."""
    longest = max(map(len, texts))
    padded = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in texts])
    logits = model(padded, use_cache=False).logits.float()
    return [row[: len(ids)] for row, ids in zip(logits, texts, strict=True)]


def _llama_config(config: ModelConfig) -> Any:
    return transformers.LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tie_embeddings,
    )
