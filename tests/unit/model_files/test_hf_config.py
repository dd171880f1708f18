"""config.json as transformers' own configuration classes read it."""

import pytest
import transformers

from atomesh.errors import ModelFileError
from atomesh.model_files.config import RopeScaling
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.testing.tiny_model import tiny_config

CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3_text": transformers.Gemma3TextConfig,
}


def _parse(**fields):
    return parse_hf_config({"model_type": "llama", **fields}, {})


def _tiny(family="llama", generation=None, **overrides):
    return parse_hf_config(tiny_config(family, **overrides), generation or {})


@pytest.mark.parametrize("spelling", ["empty", "saved"])
@pytest.mark.parametrize("model_type", CLASSES)
def test_defaults_are_those_of_transformers(model_type, spelling):
    theirs = CLASSES[model_type]()
    written = theirs.to_dict() if spelling == "saved" else {}

    ours = parse_hf_config({**written, "model_type": model_type}, {})

    assert ours.family == model_type.removesuffix("_text")
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.rope_scaling is None
    rope = theirs.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert [ours.window(layer) for layer in range(ours.num_layers)] == _windows(theirs)


def _windows(theirs):
    types = getattr(theirs, "layer_types", None)
    if types is None:
        return [getattr(theirs, "sliding_window", None)] * theirs.num_hidden_layers
    return [theirs.sliding_window if kind == "sliding_attention" else None for kind in types]


def test_gemma3s_own_numbers():
    config = _parse(model_type="gemma3_text", query_pre_attn_scalar=168, final_logit_softcapping=30.0)

    assert config.activation == "gelu_tanh"
    assert config.attention_scale == 168**-0.5
    assert config.logits_softcap == 30.0
    assert config.attention_softcap is None
    assert (config.rope_theta, config.rope_local_theta) == (1_000_000.0, 10_000.0)
    assert config.layer_windows[:7] == (4096,) * 5 + (None, 4096)


def test_a_multimodal_gemma_is_read_through_its_text_config():
    text = {
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    config = _parse(model_type="gemma3", text_config=text, eos_token_id=[1, 106])

    assert (config.family, config.num_layers, config.hidden_size) == ("gemma3", 34, 2560)
    assert config.eos_token_ids == (1, 106)
    assert config.rope_scaling == RopeScaling("linear", 8.0, 131_072)


@pytest.mark.parametrize(
    ("family", "bias", "expected"),
    [
        ("llama", True, (True, True, False)),
        ("llama", False, (False, False, False)),
        ("qwen2", False, (True, False, False)),
        ("qwen3", True, (True, True, False)),
        ("gemma3", True, (True, True, False)),
    ],
)
def test_which_projections_have_biases(family, bias, expected):
    config = _tiny(family, attention_bias=bias)
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == expected


def test_mistrals_window_may_be_null():
    assert _tiny("mistral", sliding_window=None).layer_windows == ()
    assert _tiny("mistral", sliding_window=7).layer_windows == (7, 7)


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_null_means_no_such_token_and_a_key_value_head_for_each_head(model_type):
    nulls = dict.fromkeys(("bos_token_id", "eos_token_id", "num_key_value_heads"))
    ours = parse_hf_config({"model_type": model_type, "num_attention_heads": 16, **nulls}, {})
    assert (ours.bos_token_id, ours.eos_token_ids, ours.num_kv_heads) == (None, (), 16)


def test_qwens_windows_begin_at_a_layer():
    config = _tiny("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1)
    assert config.layer_windows == (None, 9)
    assert _tiny("qwen2", sliding_window=9, max_window_layers=1).layer_windows == ()


LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeScaling("linear", 4.0, 1024)),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, RopeScaling("dynamic", 2.0, 1024)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, RopeScaling("llama3", 32.0, 8192, 1.0, 4.0)),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3}}, RopeScaling("llama3", 32.0, 8192, 1.0, 4.0)),
        (
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 256,
                }
            },
            RopeScaling("yarn", 4.0, 256),
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "beta_fast": 16,
                    "beta_slow": 2,
                    "attention_factor": 1.5,
                    "mscale": 1.0,
                    "mscale_all_dim": 0.5,
                    "truncate": False,
                }
            },
            RopeScaling(
                "yarn",
                4.0,
                1024,
                beta_fast=16.0,
                beta_slow=2.0,
                attention_factor=1.5,
                mscale=1.0,
                mscale_all_dim=0.5,
                truncate=False,
            ),
        ),
        ({"rope_scaling": None}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, None),
    ],
)
def test_rope_scaling_in_both_spellings(fields, expected):
    assert _tiny(**fields).rope_scaling == expected


def test_theta_in_both_spellings():
    assert _tiny(rope_theta=5e5).rope_theta == 5e5
    assert _tiny(rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope_theta == 5e5
    nested = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7e5}}
    nested["sliding_attention"] = {"rope_type": "default", "rope_theta": 123.0}
    gemma = _tiny("gemma3", rope_parameters=nested)
    assert (gemma.rope_theta, gemma.rope_local_theta) == (7e5, 123.0)
    assert gemma.rope_scaling == RopeScaling("linear", 2.0, 1024)


def test_generation_configs_end_tokens_win():
    assert _tiny(eos_token_id=[2, 5]).eos_token_ids == (2, 5)
    assert _tiny(generation={"eos_token_id": [2, 7]}).eos_token_ids == (2, 7)
    assert _tiny(generation={"temperature": 0.5}).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (
            {"model_type": "mamba"},
            "model_type is 'mamba'; it must be one of gemma3, gemma3_text, llama, mistral",
        ),
        ({"model_type": None}, "model_type is missing"),
        ({"model_type": ["llama"]}, "model_type is"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776; it must be an integer from 1 to"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0; it must be an integer"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 1e9}, "num_hidden_layers is 1000000000.0"),
        ({"num_hidden_layers": 100_000}, "num_hidden_layers is 100000"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key/value heads evenly"),
        ({"head_dim": 15}, "head dimension 15 is odd"),
        ({"head_dim": None, "num_attention_heads": 100, "num_key_value_heads": 1}, "head_dim is 0"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny'; it must be a number from 0 to 1"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; it must be one of gelu_pytorch_tanh, silu"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"eos_token_id": 384}, r"special tokens \[1, 384\] lie outside the vocabulary of 384"),
        ({"eos_token_id": ["2"]}, "eos_token_id is '2'"),
        ({"eos_token_id": list(range(100))}, "eos_token_id is"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2}},
            "type is 'longrope'; it must be one of default",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        (
            {"rope_scaling": {**LLAMA3, "type": "llama3", "low_freq_factor": 4.0}},
            "not below high_freq_factor",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2}, "rope_theta": 1.0}, "rope_theta is 1; yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}, "head_dim": 2}, "head dimension 2 is too small"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is set"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(overrides, complaint):
    with pytest.raises(ModelFileError, match=complaint) as refusal:
        _tiny(**overrides)
    assert refusal.value.message.startswith("config.json")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"layer_types": ["full_attention"]}, "1 layer types for 4 layers"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types is 'chunked_attention'"),
        ({"layer_types": ["full_attention"] * 5000}, "a list of at most 1024"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    ],
)
def test_what_gemma_cannot_be_is_refused(overrides, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        _tiny("gemma3", **overrides)
