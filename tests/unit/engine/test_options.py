import pytest

from atomesh.engine.options import EngineOptions
from atomesh.errors import ConfigurationError


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "float16", "dtype is 'float16'; it must be one of auto, float32, bfloat16"),
        ("device", "tpu", "device is 'tpu'; it must be one of cpu, cuda"),
        ("block_size", 64, "block_size is 64; it must be one of 16, 32"),
        ("policy", "lifo", "policy is 'lifo'; it must be one of fcfs, priority"),
        ("max_num_seqs", 0, "max_num_seqs is 0; it must be at least 1"),
        ("max_num_batched_tokens", -1, "max_num_batched_tokens is -1; it must be at least 1"),
        ("max_model_len", 0, "max_model_len is 0; it must be at least 1"),
        ("kv_memory", 0, "kv_memory is 0; it must be at least 1"),
        ("threads", 0, "threads is 0; it must be at least 1"),
    ],
)
def test_names_the_option_its_value_and_its_range(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        EngineOptions(**{field: value})
    assert (raised.value.message, raised.value.param) == (message, field)
