import threading

import pytest
import torch

from atomesh.engine.execution import kv_pool
from atomesh.engine.execution.kv_pool import KVPool
from atomesh.model_files.config import ModelConfig

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


def make_pool(num_blocks: int, device: str = "cpu") -> KVPool:
    return KVPool(CONFIG, num_blocks, 32, torch.float32, torch.device(device))


def touchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kv-pool-touch"]


def test_the_layout_is_block_major() -> None:
    pool = make_pool(5)
    assert pool.storage.shape == (5, 3, 2, 2, 32, 16)
    assert pool.storage.is_contiguous()
    assert not pool.storage.any()


def test_touching_leaves_what_is_there() -> None:
    pool = make_pool(200)
    pool.storage[150] = 3.0
    pool.touch_in_background()
    for thread in touchers():
        thread.join()
    assert torch.all(pool.storage[150] == 3.0)
    assert pool.storage.sum() == 3.0 * pool.storage[0].numel()
    pool.close()


def test_closing_ends_the_touching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pool, "SLICE_BYTES", 4096)
    monkeypatch.setattr(kv_pool, "PAUSE_S", 3600.0)
    pool = make_pool(200)
    pool.touch_in_background()
    pool.close()
    assert touchers() == []


def test_a_device_without_pages_is_not_touched() -> None:
    pool = make_pool(2, "meta")
    pool.touch_in_background()
    assert touchers() == []
    pool.close()


def test_the_transport_sees_the_same_bytes() -> None:
    pool = make_pool(5)
    assert pool.memory is not None
    assert (pool.memory.num_blocks, pool.memory.block_bytes) == (5, 3 * 2 * 2 * 32 * 16 * 4)

    pool.storage[3] = torch.arange(pool.storage[3].numel()).view_as(pool.storage[3])

    assert bytes(pool.memory.block(3)) == pool.storage[3].numpy().tobytes()
    assert not any(pool.memory.block(2))
    pool.close()


def test_bytes_that_arrive_are_the_models() -> None:
    pool = make_pool(5)
    assert pool.memory is not None
    pool.memory.block(4)[:] = torch.full(pool.storage[4].shape, 7.5).numpy().tobytes()
    assert torch.all(pool.storage[4] == 7.5)
    pool.close()


def test_a_device_of_its_own_has_no_bytes_to_offer() -> None:
    pool = make_pool(2, "meta")
    assert pool.memory is None
    pool.close()
