from dataclasses import replace

import pytest

from atomesh.engine.execution.kv_sizing import KVSize, block_bytes, context_limit, size_kv_pool
from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError
from atomesh.model_files.config import ModelConfig, RopeScaling

CONFIG = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=1000,
    norm_eps=1e-5,
    rope_theta=1e4,
    tie_embeddings=True,
    eos_token_ids=(2,),
)
BLOCK = 2**20
OPTIONS = EngineOptions()
CONTEXT_BLOCKS = 32  # of 32 tokens, for 1000


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert block_bytes(CONFIG, 32, 4) == 3 * 2 * 2 * 32 * 16 * 4


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        (None, 1000),
        (RopeScaling("llama3", 8.0, 800), 1000),
        (RopeScaling("yarn", 4.0, 500), 2000),
        (RopeScaling("dynamic", 2.0, 1000), 2000),
        (RopeScaling("linear", 2.0, 250), 1000),
    ],
)
def test_a_context_is_stretched_as_the_configuration_says(scaling: RopeScaling | None, limit: int) -> None:
    assert context_limit(replace(CONFIG, rope_scaling=scaling)) == limit


def test_by_default_a_quarter_of_the_free_memory() -> None:
    assert size_kv_pool(OPTIONS, 1000, BLOCK, 400 * BLOCK) == KVSize(100, 1000)


@pytest.mark.parametrize(("sharers", "blocks"), [(1, 400), (2, 200), (3, 133), (8, 50)])
def test_those_who_start_together_share_what_is_free(sharers: int, blocks: int) -> None:
    options = EngineOptions(memory_sharers=sharers)
    assert size_kv_pool(options, 1000, BLOCK, 1600 * BLOCK) == KVSize(blocks, 1000)


def test_an_asked_pool_is_each_ones_own() -> None:
    options = EngineOptions(kv_memory=50 * BLOCK, memory_sharers=4)
    assert size_kv_pool(options, 1000, BLOCK, 60 * BLOCK) == KVSize(50, 1000)


def test_by_default_no_more_than_32_contexts() -> None:
    assert size_kv_pool(OPTIONS, 1000, BLOCK, 10**6 * BLOCK) == KVSize(32 * CONTEXT_BLOCKS, 1000)


def test_by_default_at_least_one_context() -> None:
    assert size_kv_pool(OPTIONS, 1000, BLOCK, 80 * BLOCK) == KVSize(CONTEXT_BLOCKS, 1000)


def test_a_context_beyond_half_of_the_free_memory_is_shortened() -> None:
    assert size_kv_pool(OPTIONS, 1000, BLOCK, 20 * BLOCK) == KVSize(10, 320)


def test_kv_memory_is_taken_as_given() -> None:
    options = EngineOptions(kv_memory=50 * BLOCK + 1)
    assert size_kv_pool(options, 1000, BLOCK, 60 * BLOCK) == KVSize(50, 1000)


def test_a_small_kv_memory_shortens_the_context() -> None:
    assert size_kv_pool(EngineOptions(kv_memory=3 * BLOCK), 1000, BLOCK, 99 * BLOCK) == KVSize(3, 96)


def test_an_asked_context_makes_the_default_pool_follow() -> None:
    assert size_kv_pool(EngineOptions(max_model_len=33), 1000, BLOCK, 10**6 * BLOCK) == KVSize(64, 33)


@pytest.mark.parametrize(
    ("options", "free", "message"),
    [
        (
            EngineOptions(max_model_len=1001),
            10**6,
            "max_model_len is 1001; the model is made for 1000 tokens",
        ),
        (
            EngineOptions(max_model_len=97, kv_memory=3 * BLOCK),
            10**6,
            "which take 4MiB; the KV pool has 3MiB",
        ),
        (EngineOptions(kv_memory=BLOCK - 1), 10**6, "one block takes 1MiB: raise it"),
        (EngineOptions(kv_memory=11 * BLOCK), 10, "kv_memory is 11MiB, but only 10MiB are free"),
        (OPTIONS, 1, "half of that is less than a KV block, which takes 1MiB"),
        (EngineOptions(max_model_len=320), 18, "which take 10MiB; the KV pool has 9MiB"),
    ],
)
def test_what_does_not_fit(options: EngineOptions, free: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        size_kv_pool(options, 1000, BLOCK, free * BLOCK)
