"""Tiny random models: loadable by transformers and by us, made without either of them."""

from collections.abc import Mapping
from pathlib import Path

import orjson

from atomesh.model_files.hf_config import parse_hf_config
from atomesh.testing.safetensors_file import PlainType, write_safetensors
from atomesh.testing.tiny_gguf import write_gguf
from atomesh.testing.tiny_tokenizer import BOS_TOKEN_ID, EOS_TOKEN_ID, VOCABULARY_SIZE
from atomesh.testing.tiny_vocabulary import TokenizerKind, tiny_vocabulary
from atomesh.testing.tiny_weights import tiny_weights

_SIZES: Mapping[str, object] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "torch_dtype": "float32",
}
_FAMILIES: Mapping[str, Mapping[str, object]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"},
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "sliding_window": 24,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 16,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "tie_word_embeddings": True,
    },
}


def tiny_config(family: str = "llama", **overrides: object) -> dict[str, object]:
    """config.json of a tiny model; `overrides` are its keys, None to leave one null."""
    return {**_SIZES, **_FAMILIES[family], **overrides}


def write_tiny_model(
    directory: Path,
    family: str = "llama",
    seed: int = 0,
    *,
    dtype: PlainType = "F32",
    tokenizer: TokenizerKind = "bytes",
    **overrides: object,
) -> Path:
    """A Hugging Face directory with config.json, model.safetensors and tokenizer files; returns `directory`.

    The family is one of llama, mistral, qwen2, qwen3, gemma3; 384 tokens (481 with SentencePiece), two layers
    (Gemma four), 1,024 positions. `dtype` is how weights are stored; `overrides` replace keys of config.json.
    """
    vocabulary = tiny_vocabulary(tokenizer)
    config = tiny_config(family, **{"vocab_size": vocabulary.tokenizer.get_vocab_size(), **overrides})
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", config)
    write_safetensors(directory / "model.safetensors", tiny_weights(parse_hf_config(config, {}), seed), dtype)
    vocabulary.tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "tokenizer_config.json", vocabulary.config)
    return directory


def write_tiny_gguf(
    path: Path,
    family: str = "llama",
    seed: int = 0,
    *,
    quantisation: str = "F32",
    tokenizer: TokenizerKind = "bytes",
    **overrides: object,
) -> Path:
    """What llama.cpp's converter makes of `write_tiny_model` with the same arguments; returns `path`.

    `quantisation` of the matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1. A Mistral becomes a Llama
    without sliding window, as in real files.
    """
    vocabulary = tiny_vocabulary(tokenizer)
    fields = tiny_config(family, **{"vocab_size": vocabulary.tokenizer.get_vocab_size(), **overrides})
    config = parse_hf_config(fields, {})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(path, config, tiny_weights(config, seed), vocabulary.gguf, quantisation)
    return path


def _write_json(path: Path, document: object) -> None:
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
