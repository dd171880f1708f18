from collections.abc import Iterator

import pytest
import torch

from atomesh.engine.execution.machine_speed import MachineSpeed, measure_speed
from atomesh.engine.execution.roofline import roofline
from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.registry import build_model
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.testing.tiny_model import tiny_config

SPEED = MachineSpeed(1e9, 1e8)
CPU = torch.device("cpu")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_a_step_reads_the_matrices_that_the_model_has(family: str) -> None:
    config = parse_hf_config(tiny_config(family), {})
    slots = build_model(config, TensorFactory(torch.float32, CPU)).slots()
    sizes = {slot.name: slot.target.numel() for slot in slots if slot.target.dim() == 2}
    embedding = next(name for name in sizes if "embed" in name)
    matrices = sum(sizes.values())
    if not config.tie_embeddings:
        matrices -= sizes[embedding]  # of which a step reads a row a token
    assert roofline(config, 4, SPEED).weight_bytes == 4 * matrices


def test_what_a_token_takes() -> None:
    found = roofline(parse_hf_config(tiny_config(), {}), 2, SPEED)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128
    head = parse_hf_config(tiny_config(), {}).vocab_size * 64
    assert found.token_flops == 2 * 2 * layer
    assert found.sequence_flops == found.token_flops + 2 * head
    assert found.pair_flops == 2 * 4 * 64  # two layers; a product and a sum, of keys and of values
    assert found.kv_bytes == 2 * 2 * 32 * 2
    assert (found.flops_per_s, found.bytes_per_s) == (1e9, 1e8)


class SteppingClock:
    """Each look is so much later than the one before."""

    def __init__(self, steps: Iterator[float]) -> None:
        self._now = 0.0
        self._steps = steps

    def now(self) -> float:
        self._now += next(self._steps)
        return self._now


def test_the_best_pass_after_the_first_counts() -> None:
    taken = [0.001, 0.5, 0.2, 0.4, 0.001, 0.25, 0.75, 1.0]
    steps = (pause for seconds in taken for pause in (0.0, seconds))
    speed = measure_speed(torch.float32, CPU, SteppingClock(steps))
    assert speed.flops_per_s == pytest.approx(2 * 128 * 1024 * 1024 / 0.2)
    assert speed.bytes_per_s == pytest.approx(64 * 2**20 / 0.25)
