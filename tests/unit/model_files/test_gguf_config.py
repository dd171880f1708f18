import math
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from atomesh.errors import ModelFileError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.config import RopeScaling
from atomesh.model_files.gguf_config import parse_gguf_config
from atomesh.model_files.gguf_header import GgufHeader, parse_gguf
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.model_files.stored_tensor import ENCODINGS, StoredTensor
from atomesh.testing.tiny_model import tiny_config, write_tiny_gguf

SCALING = "llama.rope.scaling."


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    path = write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama")
    return parse_gguf(memoryview(path.read_bytes()))


def _parse(header, tensors=None, **metadata):
    changed = {key.replace("__", "."): value for key, value in metadata.items()}
    return parse_gguf_config(
        GgufHeader({**header.metadata, **changed}, {**header.tensors, **(tensors or {})})
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_converted_model_has_the_configuration_of_its_directory(tmp_path, family):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", family))

    assert checkpoint.config == parse_hf_config(tiny_config(family), {})
    assert (checkpoint.format, checkpoint.name, checkpoint.architecture) == ("gguf", "tiny", family)


def test_tied_embeddings_are_seen_by_the_missing_head(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tie_word_embeddings=True)
    assert open_checkpoint(path).config.tie_embeddings


def test_gemmas_layers_slide_five_times_in_six_unless_listed(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "gemma3", num_hidden_layers=7, layer_types=None)
    header = parse_gguf(memoryview(path.read_bytes()))
    bare = {key: value for key, value in header.metadata.items() if not key.endswith("_pattern")}

    by_default = parse_gguf_config(GgufHeader(bare, header.tensors))
    by_period = parse_gguf_config(
        GgufHeader({**bare, "gemma3.attention.sliding_window_pattern": 2}, header.tensors)
    )

    assert by_default.layer_windows == (24, 24, 24, 24, 24, None, 24)
    assert by_period.layer_windows == (24, None, 24, None, 24, None, 24)


def test_end_tokens_are_the_declared_ones_and_those_that_end_a_turn(header):
    tokens = list(header.metadata["tokenizer.ggml.tokens"])
    tokens[9] = "<end_of_turn>"

    config = _parse(
        header,
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__eos_token_id=5,
        tokenizer__ggml__eot_token_id=7,
    )

    assert config.eos_token_ids == (5, 7, 2, 9)  # 2 is <|im_end|>


def test_rope_scaling_is_read(header):
    linear = _parse(header, **{SCALING + "type": "linear", SCALING + "factor": 8.0})
    old = _parse(header, **{"llama.rope.scale_linear": 4.0})
    none = _parse(header, **{SCALING + "type": "none", SCALING + "factor": 8.0})
    yarn = _parse(
        header,
        **{SCALING + "type": "yarn", SCALING + "factor": 4.0, SCALING + "original_context_length": 256},
    )

    assert linear.rope_scaling == RopeScaling("linear", 8.0, 1024)
    assert old.rope_scaling == RopeScaling("linear", 4.0, 1024)
    assert none.rope_scaling is None
    assert yarn.rope_scaling == RopeScaling("yarn", 4.0, 256)


def _factors(values):
    data = np.asarray(values, np.float32)
    return {
        "rope_freqs.weight": StoredTensor(
            "rope_freqs.weight", data.shape, ENCODINGS["F32"], data.data.cast("B")
        )
    }


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3s_scaling_is_recognised_by_its_frequency_factors(header, factor):
    rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 500_000.0}
    theirs = transformers.LlamaConfig(head_dim=16, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    plain = 500_000.0 ** (-torch.arange(0, 16, 2) / 16)

    config = _parse(header, _factors((plain / scaled).numpy()), **{"llama.rope.freq_base": 500_000.0})

    assert config.rope_scaling == RopeScaling(
        "llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0
    )


def test_frequency_factors_of_one_scale_nothing(header):
    assert _parse(header, _factors([1.0] * 8)).rope_scaling is None


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([1.0] * 7, r"F32 of shape \(7,\); it must be F32 of shape \(8,\)"),
        ([1.0, 2.0] * 4, "does not follow Llama 3.1's"),
        ([math.nan] * 8, "does not follow Llama 3.1's"),
        ([math.inf] * 8, "does not follow Llama 3.1's"),
        ([0.0] * 8, "does not follow Llama 3.1's"),
        ([-4.0] * 8, "does not follow Llama 3.1's"),
    ],
)
def test_other_frequency_factors_are_refused(header, values, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        _parse(header, _factors(values))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("general.architecture", "mamba", "general.architecture is 'mamba'; it must be one of gemma3, llama"),
        ("general.architecture", None, "general.architecture is missing"),
        ("split.count", 3, "join them with llama-gguf-split --merge"),
        ("llama.expert_count", 8, "expert_count is 8; it must be 0: no mixture of experts"),
        ("llama.block_count", 1 << 31, "llama.block_count is 2147483648"),
        ("llama.embedding_length", 65, r"has shape \(384, 64\), but the embedding length is 65"),
        ("llama.attention.head_count", [4, 4], "head_count is"),
        ("llama.attention.head_count", 0, "head_count is 0"),
        ("llama.attention.key_length", 17, "value_length is 16; it must be the head dimension, 17"),
        ("llama.rope.dimension_count", 8, "dimension_count is 8; it must be the head dimension, 16"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan, "epsilon is nan"),
        ("llama.rope.freq_base", math.inf, "freq_base is inf"),
        ("llama.context_length", 0, "context_length is 0"),
        ("tokenizer.ggml.eos_token_id", 384, "outside the vocabulary of 384"),
        ("tokenizer.ggml.bos_token_id", -1, "bos_token_id is -1"),
        ("tokenizer.ggml.tokens", "abc", "tokenizer.ggml.tokens is 'abc'"),
        (SCALING + "type", "longrope", "type is 'longrope'"),
    ],
)
def test_metadata_that_cannot_be_served_is_refused_by_name(header, key, value, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        _parse(header, **{key: value})


def test_a_file_without_an_embedding_is_no_language_model(header):
    with pytest.raises(ModelFileError, match=r"'token_embd.weight' is missing"):
        parse_gguf_config(GgufHeader(header.metadata, {}))
    flat = replace(header.tensors["token_embd.weight"], shape=(384 * 64,))
    with pytest.raises(ModelFileError, match=r"has shape \(24576,\)"):
        _parse(header, {"token_embd.weight": flat})


def test_gemmas_pattern_must_have_one_entry_a_layer(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "gemma3")
    header = parse_gguf(memoryview(path.read_bytes()))
    for value in ([True], [1, 1, 1, 1]):
        metadata = {**header.metadata, "gemma3.attention.sliding_window_pattern": value}
        with pytest.raises(ModelFileError, match="4 booleans, one for each layer"):
            parse_gguf_config(GgufHeader(metadata, header.tensors))


def test_the_names_of_the_supported_types_are_ggmls():
    assert {name for name in ENCODINGS if name.startswith("Q")} <= set(gguf.GGMLQuantizationType.__members__)
