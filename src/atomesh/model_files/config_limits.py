"""What a model's numbers may be: far beyond any real model, far below what exhausts a machine by itself."""

from dataclasses import dataclass

from atomesh.errors import ModelFileError
from atomesh.model_files.config import ModelConfig
from atomesh.model_files.fields import Limits

VOCABULARY = Limits(1, 1 << 22)
WIDTH = Limits(1, 1 << 20)
LAYERS = Limits(1, 1024)
HEADS = Limits(1, 4096)
HEAD_DIM = Limits(2, 1024)
POSITIONS = Limits(1, 1 << 24)
WINDOW = Limits(1, 1 << 30)
TOKEN = Limits(0, (1 << 22) - 1)
TOKEN_LIST = 1 << 22
EPSILON = Limits(0.0, 1.0)
THETA = Limits(1.0, 1e15)
SCALE = Limits(1e-6, 1e6)
FACTOR = Limits(1.0, 1e6)


@dataclass(frozen=True, slots=True)
class _Rule:
    holds: bool
    complaint: str


def check_config(config: ModelConfig, source: str) -> ModelConfig:
    """Refuses numbers that do not fit each other, naming them; returns `config` otherwise."""
    special = [*config.eos_token_ids, *([] if config.bos_token_id is None else [config.bos_token_id])]
    scaling = None if config.rope_scaling is None else config.rope_scaling.kind
    rules = (
        _Rule(
            config.num_heads % config.num_kv_heads == 0,
            f"{config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads evenly",
        ),
        _Rule(config.head_dim % 2 == 0, f"head dimension {config.head_dim} is odd, so it cannot be rotated"),
        _Rule(
            scaling != "dynamic" or config.head_dim > 2,
            f"head dimension {config.head_dim} is too small for dynamic rope scaling, which needs 4 or more",
        ),
        _Rule(
            scaling != "yarn" or config.rope_theta > 1.0,
            f"rope_theta is {config.rope_theta:g}; yarn scaling needs more than 1",
        ),
        _Rule(
            all(token < config.vocab_size for token in special),
            f"special tokens {sorted(special)[-3:]} lie outside the vocabulary of {config.vocab_size}",
        ),
        _Rule(
            len(config.layer_windows) in (0, config.num_layers),
            f"{len(config.layer_windows)} layer types for {config.num_layers} layers",
        ),
    )
    for rule in rules:
        if not rule.holds:
            raise ModelFileError(f"{source}: {rule.complaint}. Download the model again")
    return config
