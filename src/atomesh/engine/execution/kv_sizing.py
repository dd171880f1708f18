"""How many KV blocks an engine has, and how long a context they allow."""

from dataclasses import dataclass

from atomesh.byte_size import format_size
from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError
from atomesh.model_files.config import ModelConfig

FULL_CONTEXTS = 32
FREE_SHARE = 4  # by default a quarter of one's part of the free memory, for one context at most half


@dataclass(frozen=True, slots=True)
class KVSize:
    num_blocks: int
    max_model_len: int


def block_bytes(config: ModelConfig, block_size: int, element_bytes: int) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in all layers."""
    return config.num_layers * 2 * config.num_kv_heads * block_size * config.head_dim * element_bytes


def context_limit(config: ModelConfig) -> int:
    """Tokens the model's positions are made for, stretched as its configuration says."""
    scaling = config.rope_scaling
    if scaling is None or scaling.kind == "llama3":
        return config.max_position
    return max(config.max_position, int(scaling.original_max_position * scaling.factor))


def size_kv_pool(options: EngineOptions, limit: int, bytes_per_block: int, free: int) -> KVSize:
    """Sizes in bytes, `limit` in tokens; by default the pool is taken from one's part of what is `free`.

    An explicit context that does not fit is a ConfigurationError; one that comes from the model is shortened.
    """
    wanted = _wanted_context(options, limit)
    blocks_per_context = -(-wanted // options.block_size)
    num_blocks = (
        _default_blocks(blocks_per_context, bytes_per_block, free // options.memory_sharers)
        if options.kv_memory is None
        else _asked_blocks(options.kv_memory, bytes_per_block, free)
    )
    if num_blocks >= blocks_per_context:
        return KVSize(num_blocks, wanted)
    if options.max_model_len is not None:
        needed, there = (format_size(count * bytes_per_block) for count in (blocks_per_context, num_blocks))
        raise ConfigurationError(
            f"max_model_len is {wanted} tokens, which take {needed}; the KV pool has {there}: "
            "lower max_model_len or raise kv_memory",
            param="max_model_len",
        )
    return KVSize(num_blocks, num_blocks * options.block_size)


def _wanted_context(options: EngineOptions, limit: int) -> int:
    if options.max_model_len is None:
        return limit
    if options.max_model_len > limit:
        raise ConfigurationError(
            f"max_model_len is {options.max_model_len}; the model is made for {limit} tokens: lower it",
            param="max_model_len",
        )
    return options.max_model_len


def _default_blocks(blocks_per_context: int, bytes_per_block: int, free: int) -> int:
    affordable = free // FREE_SHARE // bytes_per_block
    blocks = max(blocks_per_context, min(affordable, FULL_CONTEXTS * blocks_per_context))
    blocks = min(blocks, max(affordable, free // 2 // bytes_per_block))
    if blocks < 1:
        raise ConfigurationError(
            f"{format_size(free)} of memory are free for this worker; half of that is less than a KV block, "
            f"which takes {format_size(bytes_per_block)}: free some memory or serve a smaller model"
        )
    return blocks


def _asked_blocks(kv_memory: int, bytes_per_block: int, free: int) -> int:
    if kv_memory < bytes_per_block:
        raise ConfigurationError(
            f"kv_memory is {format_size(kv_memory)}; "
            f"one block takes {format_size(bytes_per_block)}: raise it",
            param="kv_memory",
        )
    if kv_memory > free:
        raise ConfigurationError(
            f"kv_memory is {format_size(kv_memory)}, but only {format_size(free)} are free: lower it",
            param="kv_memory",
        )
    return kv_memory // bytes_per_block
