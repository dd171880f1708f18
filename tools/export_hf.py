"""Write a GGUF file's model as a Hugging Face directory, for engines that read nothing else.

    python tools/export_hf.py MODEL DIRECTORY [--dtype BF16|F16|F32]

MODEL is a .gguf file of the Llama family or a name of `atomesh models`. Weights are dequantised to `--dtype`.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import orjson
import torch

from atomesh.engine.weights.source import WeightSource
from atomesh.errors import ConfigurationError
from atomesh.frontend.templates.sources import template_sources
from atomesh.frontend.text.gguf_tokenizer import gguf_tokenizer_definition
from atomesh.model_files.checkpoint import Checkpoint, open_checkpoint
from atomesh.model_files.config import ModelConfig
from atomesh.model_files.resolve import resolve_model
from atomesh.testing.safetensors_file import write_safetensors


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a .gguf file, or a name of `atomesh models`")
    parser.add_argument("directory", type=Path, help="where to write; made if missing")
    parser.add_argument("--dtype", choices=("BF16", "F16", "F32"), default="BF16", help="of the weights")
    arguments = parser.parse_args()
    home = Path(os.environ.get("ATOMESH_HOME") or "~/.cache/atomesh").expanduser()
    checkpoint = open_checkpoint(resolve_model(arguments.model, home).path)
    if checkpoint.format != "gguf" or checkpoint.config.family != "llama":
        raise ConfigurationError(
            f"{arguments.model} is no GGUF file of the Llama family; export one of those"
        )
    export(checkpoint, arguments.directory, arguments.dtype)


def export(checkpoint: Checkpoint, directory: Path, dtype: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    source = WeightSource(checkpoint)
    tensors = {}
    for name in sorted(source.names()):
        values = torch.empty(source.shape(name), dtype=torch.float32)
        source.read_into(name, values)
        tensors[name] = values.numpy()
    write_safetensors(directory / "model.safetensors", tensors, dtype)
    _write(directory / "config.json", hf_config(checkpoint.config, dtype))
    definition = gguf_tokenizer_definition(checkpoint.metadata)
    _write(directory / "tokenizer.json", definition.spec)
    _write(directory / "tokenizer_config.json", tokenizer_config(checkpoint))


def hf_config(config: ModelConfig, dtype: str) -> dict[str, Any]:
    eos = list(config.eos_token_ids)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "torch_dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype],
    }


def tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    config = checkpoint.config
    named = {"eos_token": config.eos_token_ids[0] if config.eos_token_ids else None}
    named["bos_token"] = config.bos_token_id
    texts = {name: tokens[token_id] for name, token_id in named.items() if token_id is not None}  # type: ignore[index]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position,
        "clean_up_tokenization_spaces": False,
        "chat_template": template_sources(checkpoint, None).get("default"),
        **texts,
    }


def _write(path: Path, document: object) -> None:
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
