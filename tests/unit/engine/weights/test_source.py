import json
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomesh.engine.weights.shapes import matrix_shapes
from atomesh.engine.weights.source import WeightSource
from atomesh.errors import ModelFileError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.testing.safetensors_file import write_safetensors
from atomesh.testing.tiny_model import tiny_config, write_tiny_gguf, write_tiny_model
from atomesh.testing.tiny_weights import tiny_weights

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


def _read(source, name, dtype=torch.float32):
    out = torch.full(source.shape(name), float("nan"), dtype=dtype)
    source.read_into(name, out)
    return out


def _weights(family, seed=0, **overrides):
    return tiny_weights(parse_hf_config(tiny_config(family, **overrides), {}), seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_directory_gives_its_values_bit_for_bit(tmp_path, family):
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path, family)))

    expected = _weights(family)
    assert source.names() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(_read(source, name).numpy(), values)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_gives_the_same_names_order_and_values(tmp_path, family):
    source = WeightSource(open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", family)))

    expected = _weights(family)
    assert source.names() == expected.keys()
    for name, values in expected.items():
        # Gemma's norms went through w + 1 - 1 in float32
        np.testing.assert_allclose(_read(source, name).numpy(), values, rtol=0, atol=3e-7)


def test_biases_of_llamas_queries_are_put_in_order_too(tmp_path):
    bias = {"attention_bias": True, "mlp_bias": True}
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", "llama", **bias))
    source = WeightSource(checkpoint)

    assert (checkpoint.config.attention_bias, checkpoint.config.output_bias, checkpoint.config.mlp_bias) == (
        True,
    ) * 3
    for name, values in _weights("llama", **bias).items():
        np.testing.assert_array_equal(_read(source, name).numpy(), values)


@pytest.mark.parametrize("quantisation", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_interleaved_rows_come_out_in_order_whatever_the_encoding(tmp_path, quantisation):
    source = WeightSource(
        open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", "llama", quantisation=quantisation))
    )

    name = "model.layers.1.self_attn.q_proj.weight"
    values = _weights("llama")[name]
    worst = {"Q8_0": 0.01, "Q4_1": 0.1, "F16": 1e-3, "BF16": 5e-3}[quantisation]
    assert abs(_read(source, name).numpy() - values).max() < worst
    assert worst < abs(values).max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_rounded_to_the_type_of_their_place(tmp_path, dtype):
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path, "llama")))

    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(_read(source, name, dtype), torch.from_numpy(_weights("llama")[name]).to(dtype))


def test_a_slice_of_a_fused_matrix_is_filled_and_nothing_else(tmp_path):
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path, "llama")))
    fused = torch.zeros(128 + 10, 64)

    source.read_into("model.layers.0.mlp.gate_proj.weight", fused[5:133])

    assert torch.equal(
        fused[5:133], torch.from_numpy(_weights("llama")["model.layers.0.mlp.gate_proj.weight"])
    )
    assert not fused[:5].any()
    assert not fused[133:].any()


def test_tensors_larger_than_a_chunk_are_read_whole(tmp_path):
    sizes = {"hidden_size": 256, "head_dim": 64, "num_hidden_layers": 1, "intermediate_size": 9000}
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path, "llama", **sizes)))

    name = "model.layers.0.mlp.down_proj.weight"
    np.testing.assert_array_equal(_read(source, name).numpy(), _weights("llama", **sizes)[name])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_inside_a_multimodal_checkpoint_is_found(tmp_path, prefix):
    write_tiny_model(tmp_path, "gemma3")
    weights = _weights("gemma3")
    renamed = {prefix + name.removeprefix("model."): values for name, values in weights.items()}
    vision = np.zeros((4, 4), np.float32)
    write_safetensors(
        tmp_path / "model.safetensors",
        {**renamed, "vision_tower.a.weight": vision, "model.vision_tower.b.weight": vision},
    )

    assert WeightSource(open_checkpoint(tmp_path)).names() == weights.keys()


def test_unknown_tensors_are_shown_not_hidden(tmp_path):
    write_tiny_model(tmp_path, "llama")
    extra = {"model.layers.0.self_attn.sinks": np.zeros(4, np.float32)}
    write_safetensors(tmp_path / "model.safetensors", {**_weights("llama"), **extra})

    assert "model.layers.0.self_attn.sinks" in WeightSource(open_checkpoint(tmp_path)).names()


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("hidden_size", 128, r"embed_tokens.weight' has shape \(384, 64\).*\(384, 128\)"),
        ("vocab_size", 400, r"embed_tokens.weight' has shape \(384, 64\).*\(400, 64\)"),
        ("intermediate_size", 1 << 20, r"gate_proj.weight' has shape \(128, 64\).*\(1048576, 64\)"),
        ("num_hidden_layers", 1000, r"'model.layers.2.self_attn.q_proj.weight' is missing"),
        ("num_key_value_heads", 4, r"k_proj.weight' has shape \(32, 64\).*\(64, 64\)"),
        ("tie_word_embeddings", True, None),
    ],
)
def test_a_configuration_that_lies_about_sizes_is_refused_before_memory_is_taken(
    tmp_path, key, value, complaint
):
    write_tiny_model(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("llama", **{key: value})))

    checkpoint = open_checkpoint(tmp_path)
    if complaint is None:
        assert "lm_head.weight" in WeightSource(checkpoint).names()
        return
    with pytest.raises(ModelFileError, match=complaint):
        WeightSource(checkpoint)


def test_wrong_shapes_missing_names_and_integers_are_refused(tmp_path):
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path, "llama")))

    with pytest.raises(ModelFileError, match=r"norm.weight' has shape \(64,\)"):
        source.read_into("model.norm.weight", torch.empty(65))
    with pytest.raises(ModelFileError, match=r"'model.nothing' is missing"):
        source.shape("model.nothing")


def test_matrix_shapes_are_nearly_all_of_a_model():
    config = parse_hf_config(tiny_config("qwen3"), {})
    weights = tiny_weights(config, 0)

    matrices = dict(matrix_shapes(config))
    assert matrices == {name: values.shape for name, values in weights.items() if values.ndim == 2}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8),
    data=st.data(),
)
def test_damaged_files_are_read_or_refused(tmp_path_factory, edits, data):
    """Bits may be wrong, but nothing other than ModelFileError is ever raised."""
    path = write_tiny_gguf(
        tmp_path_factory.mktemp("damaged") / "x.gguf", quantisation="Q4_1", num_hidden_layers=1
    )
    content = bytearray(path.read_bytes())
    for position, value in edits:
        content[position % len(content)] = value
    path.write_bytes(content[: data.draw(st.none() | st.integers(0, len(content)))])

    with suppress(ModelFileError):
        source = WeightSource(open_checkpoint(path))
        for name in source.names():
            _read(source, name)
