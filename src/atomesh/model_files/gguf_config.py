"""GGUF metadata → ModelConfig."""

from collections.abc import Mapping
from dataclasses import replace

from atomesh.errors import ModelFileError
from atomesh.model_files import config_limits as limits
from atomesh.model_files.config import Family, ModelConfig
from atomesh.model_files.fields import Fields, Limits
from atomesh.model_files.gguf_header import GgufHeader
from atomesh.model_files.gguf_rope import RopeShape, read_gguf_scaling
from atomesh.model_files.stored_tensor import StoredTensor

_FAMILIES: Mapping[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|eom_id|>", "<|end|>")
_GEMMA3_LAYERS_27B = 62


def parse_gguf_config(header: GgufHeader) -> ModelConfig:
    """Raises ModelFileError where metadata is missing, out of bounds or of an unsupported family."""
    fields = Fields("metadata", header.metadata)
    arch = fields.choice("general.architecture", _FAMILIES)
    if fields.integer("split.count", limits.WIDTH, 1) > 1:
        raise ModelFileError(
            "metadata: split.count says that this is one part of several: "
            "join them with llama-gguf-split --merge"
        )
    if fields.integer(f"{arch}.expert_count", Limits(0, 1 << 20), 0):
        raise fields.refuse(
            f"{arch}.expert_count", fields.values[f"{arch}.expert_count"], "0: no mixture of experts"
        )
    config = _base(fields, arch, header.tensors)
    if arch == "gemma3":
        config = _gemma3(fields, config)
    return limits.check_config(config, "metadata")


def _base(fields: Fields, arch: str, tensors: Mapping[str, StoredTensor]) -> ModelConfig:
    hidden = fields.integer(f"{arch}.embedding_length", limits.WIDTH)
    heads = fields.integer(f"{arch}.attention.head_count", limits.HEADS)
    head_dim = fields.integer(f"{arch}.attention.key_length", limits.HEAD_DIM, hidden // heads)
    max_position = fields.integer(f"{arch}.context_length", limits.POSITIONS)
    theta = fields.number(
        f"{arch}.rope.freq_base", limits.THETA, 1_000_000.0 if arch == "gemma3" else 10_000.0
    )
    _check_head_sizes(fields, arch, head_dim)
    return ModelConfig(
        family=_FAMILIES[arch],
        vocab_size=_vocab_size(tensors, hidden),
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{arch}.feed_forward_length", limits.WIDTH),
        num_layers=fields.integer(f"{arch}.block_count", limits.LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer(f"{arch}.attention.head_count_kv", limits.HEADS, heads),
        head_dim=head_dim,
        max_position=max_position,
        norm_eps=_decimal(fields.number(f"{arch}.attention.layer_norm_rms_epsilon", limits.EPSILON)),
        rope_theta=_decimal(theta),
        rope_scaling=read_gguf_scaling(fields, arch, RopeShape(theta, head_dim, max_position), tensors),
        tie_embeddings="output.weight" not in tensors,
        eos_token_ids=_eos_token_ids(fields),
        bos_token_id=fields.optional_integer("tokenizer.ggml.bos_token_id", limits.TOKEN),
        attention_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
    )


def _gemma3(fields: Fields, config: ModelConfig) -> ModelConfig:
    """What llama.cpp's converter leaves out are constants of the family (llama.cpp, llama-model.cpp)."""
    window = fields.integer("gemma3.attention.sliding_window", limits.WINDOW)
    per_head = config.hidden_size // config.num_heads
    local_theta = fields.number("gemma3.rope.freq_base_swa", limits.THETA, 10_000.0)
    return replace(
        config,
        activation="gelu_tanh",
        rope_local_theta=_decimal(local_theta),
        layer_windows=tuple(
            window if sliding else None for sliding in _sliding_layers(fields, config.num_layers)
        ),
        attention_scale=per_head**-0.5 if config.num_layers == _GEMMA3_LAYERS_27B else config.head_dim**-0.5,
        attention_softcap=fields.optional_number("gemma3.attn_logit_softcapping", limits.SCALE),
        logits_softcap=fields.optional_number("gemma3.final_logit_softcapping", limits.SCALE),
    )


def _sliding_layers(fields: Fields, num_layers: int) -> list[bool]:
    """Listed by layer, or all but every n-th, by default the sixth."""
    key = "gemma3.attention.sliding_window_pattern"
    if not isinstance(fields.values.get(key), list):
        period = fields.integer(key, limits.LAYERS, 6)
        return [(layer + 1) % period != 0 for layer in range(num_layers)]
    listed = fields.items(key, num_layers)
    if len(listed) != num_layers or not all(isinstance(item, bool) for item in listed):
        raise fields.refuse(key, listed, f"{num_layers} booleans, one for each layer")
    return [bool(item) for item in listed]


def _vocab_size(tensors: Mapping[str, StoredTensor], hidden: int) -> int:
    """Rows of the embedding: the token list may be shorter, where the model's vocabulary is padded."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError("tensor 'token_embd.weight' is missing: this file holds no language model")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise ModelFileError(
            f"tensor 'token_embd.weight' has shape {embedding.shape}, but the embedding length is {hidden}"
        )
    if embedding.shape[0] > limits.VOCABULARY.high:
        raise ModelFileError(
            f"the vocabulary has {embedding.shape[0]} tokens; it may have {limits.VOCABULARY}"
        )
    return embedding.shape[0]


def _check_head_sizes(fields: Fields, arch: str, head_dim: int) -> None:
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if fields.integer(key, limits.WIDTH, head_dim) != head_dim:
            raise fields.refuse(key, fields.values[key], f"the head dimension, {head_dim}")


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """The declared ends of a text, a turn or a message, and the tokens that by their name end a turn."""
    names = ("eos", "eot", "eom")
    declared = [fields.optional_integer(f"tokenizer.ggml.{name}_token_id", limits.TOKEN) for name in names]
    tokens = fields.items("tokenizer.ggml.tokens", limits.TOKEN_LIST)
    named = [tokens.index(text) for text in _TURN_ENDS if text in tokens]
    return tuple(dict.fromkeys(token for token in [*declared, *named] if token is not None))


def _decimal(value: float) -> float:
    """The short decimal that the file's 32-bit float was rounded from: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")
