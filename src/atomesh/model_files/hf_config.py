"""config.json of a Hugging Face directory → ModelConfig.

Keys that a config.json leaves out mean the defaults of transformers' configuration classes, repeated here by
family.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from atomesh.errors import ModelFileError
from atomesh.model_files import config_limits as limits
from atomesh.model_files.config import ModelConfig
from atomesh.model_files.fields import Fields
from atomesh.model_files.hf_rope import read_local_theta, read_rope

_LLAMA_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}
_MISTRAL_DEFAULTS = {
    **_LLAMA_DEFAULTS,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
_QWEN_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "hidden_act": "silu",
}
_GEMMA_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
# No such token; as many key/value heads as attention heads.
_MEANINGFUL_NULLS = ("bos_token_id", "eos_token_id", "num_key_value_heads")


def parse_hf_config(config: Mapping[str, object], generation: Mapping[str, object]) -> ModelConfig:
    """`generation` is generation_config.json or empty; its end tokens win. Raises ModelFileError."""
    model_type = Fields("config.json", config).choice("model_type", _READERS)
    if config.get("quantization_config"):
        raise ModelFileError(
            "config.json: quantization_config is set, and quantised weights in a Hugging Face directory "
            "are not supported: use the original weights or a GGUF file"
        )
    text = Fields("config.json", config)
    if model_type == "gemma3":
        # The outer object of a multimodal checkpoint carries the token ids of the whole.
        outer = {key: config[key] for key in ("eos_token_id", "bos_token_id") if config.get(key) is not None}
        text = Fields("config.json: text_config", {**text.mapping("text_config").values, **outer})
    parsed = _READERS[model_type](text)
    generated = Fields("generation_config.json", generation)
    if generated.has("eos_token_id"):
        parsed = replace(parsed, eos_token_ids=_token_ids(generated, "eos_token_id"))
    return limits.check_config(parsed, "config.json")


def _llama(text: Fields) -> ModelConfig:
    fields = _with_defaults(text, _LLAMA_DEFAULTS)
    bias = fields.flag("attention_bias", False)
    return replace(
        _base(fields), attention_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias", False)
    )


def _mistral(text: Fields) -> ModelConfig:
    fields = _with_defaults(text, _MISTRAL_DEFAULTS)
    config = replace(_base(fields), family="mistral")
    # A null window means none; a missing key means the class's default.
    window = (
        4096
        if "sliding_window" not in text.values
        else fields.optional_integer("sliding_window", limits.WINDOW)
    )
    return replace(config, layer_windows=() if window is None else (window,) * config.num_layers)


def _qwen2(text: Fields) -> ModelConfig:
    fields = _with_defaults(text, _QWEN_DEFAULTS)
    config = replace(_base(fields), family="qwen2", attention_bias=True)
    return replace(config, layer_windows=_qwen_windows(fields, config.num_layers))


def _qwen3(text: Fields) -> ModelConfig:
    fields = _with_defaults(text, {**_QWEN_DEFAULTS, "head_dim": 128})
    config = _base(fields)
    bias = fields.flag("attention_bias", False)
    windows = _qwen_windows(fields, config.num_layers)
    return replace(config, family="qwen3", attention_bias=bias, output_bias=bias, layer_windows=windows)


def _gemma3(text: Fields) -> ModelConfig:
    fields = _with_defaults(text, _GEMMA_DEFAULTS)
    if fields.flag("use_bidirectional_attention", False):
        raise fields.refuse("use_bidirectional_attention", True, "false: only causal models generate text")
    config = _base(fields, "hidden_activation", 1_000_000.0)
    pattern = fields.integer("sliding_window_pattern", limits.WINDOW)
    default_types = [
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(config.num_layers)
    ]
    bias = fields.flag("attention_bias", False)
    return replace(
        config,
        family="gemma3",
        attention_bias=bias,
        output_bias=bias,
        rope_local_theta=read_local_theta(fields),
        layer_windows=_windows(fields, default_types),
        attention_scale=fields.number("query_pre_attn_scalar", limits.SCALE) ** -0.5,
        attention_softcap=fields.optional_number("attn_logit_softcapping", limits.SCALE),
        logits_softcap=fields.optional_number("final_logit_softcapping", limits.SCALE),
    )


_READERS: Mapping[str, Callable[[Fields], ModelConfig]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3,
}


def _base(fields: Fields, activation_key: str = "hidden_act", default_theta: float = 10_000.0) -> ModelConfig:
    heads = fields.integer("num_attention_heads", limits.HEADS)
    hidden = fields.integer("hidden_size", limits.WIDTH)
    max_position = fields.integer("max_position_embeddings", limits.POSITIONS)
    activation = fields.choice(activation_key, ("silu", "gelu_pytorch_tanh"))
    rope = read_rope(fields, max_position, default_theta)
    return ModelConfig(
        family="llama",
        vocab_size=fields.integer("vocab_size", limits.VOCABULARY),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", limits.WIDTH),
        num_layers=fields.integer("num_hidden_layers", limits.LAYERS),
        num_heads=heads,
        num_kv_heads=fields.integer("num_key_value_heads", limits.HEADS, heads),
        head_dim=fields.integer("head_dim", limits.HEAD_DIM, hidden // heads),
        max_position=max_position,
        norm_eps=fields.number("rms_norm_eps", limits.EPSILON, 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        eos_token_ids=_token_ids(fields, "eos_token_id"),
        bos_token_id=fields.optional_integer("bos_token_id", limits.TOKEN),
        activation="silu" if activation == "silu" else "gelu_tanh",
    )


def _with_defaults(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """A null is as good as missing, except where transformers gives it a meaning of its own."""
    present = {
        key: value for key, value in fields.values.items() if value is not None or key in _MEANINGFUL_NULLS
    }
    return Fields(fields.source, {**defaults, **present})


def _token_ids(fields: Fields, key: str) -> tuple[int, ...]:
    """One id, a list of ids, or none."""
    value = fields.values.get(key)
    if not isinstance(value, list):
        token = fields.optional_integer(key, limits.TOKEN)
        return () if token is None else (token,)
    items = fields.items(key, 64)
    return tuple(Fields(fields.source, {key: item}).integer(key, limits.TOKEN) for item in items)


def _qwen_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    if not fields.flag("use_sliding_window", False):
        return ()
    first = fields.integer("max_window_layers", limits.WINDOW)
    default_types = [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)
    ]
    return _windows(fields, default_types)


def _windows(fields: Fields, default_types: list[str]) -> tuple[int | None, ...]:
    types = fields.items("layer_types", 1024) or default_types
    window = fields.integer("sliding_window", limits.WINDOW)
    sizes: dict[object, int | None] = {"sliding_attention": window, "full_attention": None}
    for kind in types:
        if not isinstance(kind, str) or kind not in sizes:
            raise fields.refuse("layer_types", kind, "sliding_attention or full_attention for each layer")
    return tuple(sizes[kind] for kind in types)
