"""A decoder-only transformer's shape, the same from config.json and from GGUF metadata."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the trained context; a field that a kind does not use keeps
    its default.

    Kinds and meanings are those of Hugging Face's `rope_parameters`: linear, dynamic, llama3 (Llama 3.1),
    yarn (Peng et al., arXiv:2309.00071).
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn"]
    factor: float
    original_max_position: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements, lengths in tokens. `layer_windows[i]` is layer i's sliding window, None for full
    attention."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope_theta: float
    tie_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_bias: bool = False  # on q, k and v
    output_bias: bool = False  # on o
    mlp_bias: bool = False
    rope_scaling: RopeScaling | None = None
    rope_local_theta: float | None = None  # Gemma 3: theta of the sliding layers, which are never scaled
    layer_windows: tuple[int | None, ...] = ()  # empty: all full
    attention_scale: float | None = None  # None: head_dim ** -0.5
    attention_softcap: float | None = None
    logits_softcap: float | None = None

    def window(self, layer: int) -> int | None:
        return self.layer_windows[layer] if self.layer_windows else None
