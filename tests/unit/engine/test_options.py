from typing import Any

import numpy as np
import pytest
import torch

from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "float16", "dtype is 'float16'; it must be one of auto, float32, bfloat16"),
        ("dtype", torch.float32, "dtype is torch.float32; it must be one of auto, float32, bfloat16"),
        ("device", "tpu", "device is 'tpu'; it must be one of cpu, cuda"),
        ("attention", "amx", "attention is 'amx'; it must be one of torch, kernel"),
        ("block_size", 64, "block_size is 64; it must be one of 16, 32"),
        ("block_size", 32.0, "block_size is 32.0; it must be one of 16, 32"),
        ("scheduling_policy", "lifo", "scheduling_policy is 'lifo'; it must be one of fcfs, priority"),
        ("enable_prefix_cache", "no", "enable_prefix_cache is 'no'; it must be one of True, False"),
        ("enable_chunked_prefill", 1, "enable_chunked_prefill is 1; it must be one of True, False"),
        ("max_num_seqs", 0, "max_num_seqs is 0; it must be at least 1: raise it"),
        ("max_num_batched_tokens", -1, "max_num_batched_tokens is -1; it must be at least 1: raise it"),
        ("max_model_len", 0, "max_model_len is 0; it must be at least 1: raise it"),
        ("kv_memory", 0, "kv_memory is 0; it must be at least 1: raise it"),
        ("threads", 0, "threads is 0; it must be at least 1: raise it"),
        ("threads", 1025, "threads is 1025; it must be at most 1024: lower it"),
        ("max_num_seqs", 2**31, "max_num_seqs is 2147483648; it must be at most 2147483647: lower it"),
        (
            "max_num_seqs",
            "8",
            "max_num_seqs is '8' (str); it must be an int from 1 to 2147483647: give one, or leave it out",
        ),
        (
            "threads",
            True,
            "threads is True (bool); it must be an int from 1 to 1024: give one, or leave it out",
        ),
        (
            "max_model_len",
            128.0,
            "max_model_len is 128.0 (float); it must be an int from 1 to 2147483647: give one, or leave it "
            "out",
        ),
        (
            "max_num_batched_tokens",
            None,
            "max_num_batched_tokens is None (NoneType); it must be an int from 1 to 2147483647: give one, or "
            "leave it out",
        ),
        (
            "kv_memory",
            np.array([2**20]),
            "kv_memory is [1048576] (list); it must be an int from 1 to 9223372036854775807: give one, or "
            "leave it out",
        ),
        (
            "kv_memory",
            np.float64(1.5),
            "kv_memory is 1.5 (float); it must be an int from 1 to 9223372036854775807: give one, or leave "
            "it out",
        ),
    ],
)
def test_names_the_option_its_value_and_its_range(field: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        EngineOptions(**{field: value})
    assert (raised.value.message, raised.value.param) == (message, field)


def test_numpy_s_scalars_are_the_numbers_that_they_are() -> None:
    options = EngineOptions(
        dtype=np.str_("float32"),
        block_size=np.int32(16),
        max_num_seqs=np.int64(8),
        kv_memory=np.uint64(2**40),
        enable_prefix_cache=np.bool_(False),
    )
    assert options == EngineOptions(
        dtype="float32", block_size=16, max_num_seqs=8, kv_memory=2**40, enable_prefix_cache=False
    )
    kinds = [type(getattr(options, name)) for name in ("dtype", "block_size", "max_num_seqs", "kv_memory")]
    assert kinds == [str, int, int, int]
    assert options.enable_prefix_cache is False
