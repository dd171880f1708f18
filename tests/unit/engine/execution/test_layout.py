import msgspec
import torch

from atomesh.engine.execution.kv_pool import KVPool
from atomesh.engine.execution.layout import kv_layout
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.protocol.kv_layout import difference
from atomesh.protocol.worker import ModelDescription
from atomesh.testing.tiny_model import tiny_config

MODEL = ModelDescription(
    name="tiny",
    path="",
    architecture="LlamaForCausalLM",
    dtype="bfloat16",
    vocab_size=400,
    max_model_len=64,
    eos_token_ids=(),
    block_size=16,
    num_blocks=4,
)
CONFIG = parse_hf_config(tiny_config(), {})


def test_a_block_is_what_lies_between_two_blocks_of_the_pool() -> None:
    layout = kv_layout(CONFIG, MODEL, "w", element_bytes=2)
    pool = KVPool(CONFIG, 4, 16, torch.bfloat16, torch.device("cpu"))
    assert layout.block_bytes == pool.storage[0].nbytes
    assert (layout.num_layers, layout.num_kv_heads, layout.head_dim) == (2, 2, 16)


def test_what_a_peer_has_otherwise_is_named() -> None:
    ours = kv_layout(CONFIG, MODEL, "w", element_bytes=2)
    theirs = kv_layout(CONFIG, msgspec.structs.replace(MODEL, dtype="float32"), "w", element_bytes=4)
    assert difference(ours, ours) is None
    assert difference(ours, theirs) == "dtype is 'bfloat16' here and 'float32' there"
