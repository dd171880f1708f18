"""Random weights of a tiny model, by Hugging Face's parameter names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atomesh.model_files.config import ModelConfig

Array = npt.NDArray[np.float32]

_EMBEDDING_STD = 0.2
_BIAS_STD = 0.1


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0


def tiny_weights(config: ModelConfig, seed: int) -> Mapping[str, Array]:
    """float32 values, the same for the same configuration and seed.

    Scaled so that layers outweigh the embedding: greedy output varies instead of repeating one token.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    return {
        parameter.name: (
            parameter.mean + parameter.std * generator.standard_normal(parameter.shape, dtype=np.float32)
        ).astype(np.float32)
        for parameter in _parameters(config)
    }


def _parameters(config: ModelConfig) -> Iterator[_Parameter]:
    hidden = config.hidden_size
    # Gemma scales its embedding up by sqrt(hidden).
    embedding_std = _EMBEDDING_STD / 4 if config.family == "gemma3" else _EMBEDDING_STD
    yield _Parameter("model.embed_tokens.weight", (config.vocab_size, hidden), embedding_std)
    for layer in range(config.num_layers):
        yield from _layer(config, f"model.layers.{layer}.")
    yield _norm(config, "model.norm", hidden)
    if not config.tie_embeddings:
        yield _Parameter("lm_head.weight", (config.vocab_size, hidden), _EMBEDDING_STD)


def _layer(config: ModelConfig, prefix: str) -> Iterator[_Parameter]:
    hidden, attention = config.hidden_size, prefix + "self_attn."
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield from _linear(attention + "q_proj", (q_size, hidden), config.attention_bias)
    yield from _linear(attention + "k_proj", (kv_size, hidden), config.attention_bias)
    yield from _linear(attention + "v_proj", (kv_size, hidden), config.attention_bias)
    yield from _linear(attention + "o_proj", (hidden, q_size), config.output_bias)
    yield from _linear(prefix + "mlp.gate_proj", (config.intermediate_size, hidden), config.mlp_bias)
    yield from _linear(prefix + "mlp.up_proj", (config.intermediate_size, hidden), config.mlp_bias)
    yield from _linear(prefix + "mlp.down_proj", (hidden, config.intermediate_size), config.mlp_bias)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.family == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in norms:
        yield _norm(config, prefix + name, hidden)
    if config.family in ("gemma3", "qwen3"):
        # A factor of 2 in Gemma: with 1 its attention is so even that greedy output repeats one token.
        for name in ("q_norm", "k_norm"):
            yield _Parameter(f"{attention}{name}.weight", (config.head_dim,), 0.1, 1.0)


def _linear(name: str, shape: tuple[int, int], bias: bool) -> Iterator[_Parameter]:
    yield _Parameter(f"{name}.weight", shape, 1.5 * shape[1] ** -0.5)
    if bias:
        yield _Parameter(f"{name}.bias", shape[:1], _BIAS_STD)


def _norm(config: ModelConfig, name: str, size: int) -> _Parameter:
    return _Parameter(f"{name}.weight", (size,), 0.1, 0.0 if config.family == "gemma3" else 1.0)
