"""Writes a model as llama.cpp's converter would: names, row order, norm offsets, metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from atomesh.model_files.config import ModelConfig

Array = npt.NDArray[np.float32]
_ARCHITECTURES = {"mistral": "llama"}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """`merges` belong to byte-level BPE (model gpt2), `scores` to SentencePiece (model llama)."""

    model: str
    pre: str
    tokens: Sequence[str]
    types: Sequence[int]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    chat_template: str | None = None


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, Array],
    vocabulary: GgufVocabulary,
    quantisation: str,
) -> None:
    """Stores matrices as `quantisation` (F32, F16, BF16 or one that gguf can write), vectors as F32."""
    arch = _ARCHITECTURES.get(config.family, config.family)
    writer = gguf.GGUFWriter(str(path), arch)
    _add_shape(writer, config, arch)
    _add_vocabulary(writer, config, vocabulary)
    kind = gguf.GGMLQuantizationType[quantisation]
    names = gguf.get_tensor_name_map(_architecture(arch), config.num_layers)
    for name, values in weights.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise ValueError(f"GGUF has no name for {name}")
        converted = _converted(name, values, config)
        stored = kind if converted.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quantize(converted, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _architecture(arch: str) -> gguf.MODEL_ARCH:
    return next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)


def _converted(name: str, values: Array, config: ModelConfig) -> Array:
    if config.family in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
        heads = config.num_heads if "q_proj" in name else config.num_kv_heads
        halves = values.reshape(heads, 2, config.head_dim // 2, *values.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if config.family == "gemma3" and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    return values


def _add_shape(writer: gguf.GGUFWriter, config: ModelConfig, arch: str) -> None:
    if config.rope_scaling is not None:
        raise ValueError(f"rope scaling {config.rope_scaling.kind} is not written to GGUF files")
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    window = next((window for window in config.layer_windows if window is not None), None)
    if window is not None and arch == "gemma3":
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern([window is not None for window in config.layer_windows])


def _add_vocabulary(writer: gguf.GGUFWriter, config: ModelConfig, vocabulary: GgufVocabulary) -> None:
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.chat_template is not None:
        writer.add_chat_template(vocabulary.chat_template)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    if config.eos_token_ids:
        writer.add_eos_token_id(config.eos_token_ids[0])
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(vocabulary.model == "llama")
    writer.add_add_space_prefix(vocabulary.model == "llama")
