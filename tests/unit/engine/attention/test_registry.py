"""Engines of every family answer the same by either attention."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from atomesh.clock import MonotonicClock
from atomesh.engine.attention import cpu_attention
from atomesh.engine.attention.cpu_attention import CpuAttention
from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.registry import ATTENTION, build_attention
from atomesh.engine.attention.shape import AttentionShape
from atomesh.engine.attention.torch_attention import TorchAttention
from atomesh.engine.build import build_engine
from atomesh.engine.kernels.library import load_kernels
from atomesh.engine.options import AttentionChoice, EngineOptions
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.testing.tiny_model import write_tiny_model

SHAPE = AttentionShape(4, 2, 16, 0.35, None, (None,))
needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="no compiler, or no such processor")


def pool() -> PagedKV:
    return PagedKV(torch.zeros(1, 1, 2, 2, 16, 16))


def answers(path: Path, attention: AttentionChoice, prompts: Sequence[list[int]]) -> dict[str, list[int]]:
    options = EngineOptions(
        dtype="float32", attention=attention, max_num_batched_tokens=64, kv_memory=8 * 2**20
    )
    engine = build_engine(
        open_checkpoint(path), options, secret=b"s" * 32, served_name="tiny", clock=MonotonicClock()
    )
    found: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        sampling = SamplingSpec(seed=0, max_tokens=12, temperature=0.0)
        engine.add(GenerationRequest(request_id=str(index), prompt_token_ids=prompt, sampling=sampling))
    try:
        while engine.has_work():
            for delta in engine.step():
                assert delta.error is None
                found[delta.request_id] += delta.token_ids
    finally:
        engine.close()
    return found


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_greedy_tokens_are_those_of_torch(tmp_path: Path, family: str) -> None:
    path = write_tiny_model(tmp_path / "model", family)
    rng = random.Random(7)
    prompts = [[rng.randrange(384) for _ in range(length)] for length in (3, 40, 70, 300)]
    assert answers(path, "kernel", prompts) == answers(path, "torch", prompts)


@needs_kernels
def test_each_choice_makes_its_attention() -> None:
    made = {choice: type(build_attention(choice, SHAPE, pool())) for choice in ATTENTION}
    assert made == {"torch": TorchAttention, "kernel": CpuAttention}


def test_without_kernels_it_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "load_kernels", lambda: None)
    assert type(build_attention("kernel", SHAPE, pool())) is TorchAttention
