"""Weights packed for the C++ product, from a model's file to its tokens."""

from pathlib import Path

import pytest
import torch

from atomesh.engine.kernels.library import load_kernels
from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.registry import build_model
from atomesh.engine.options import EngineOptions, WeightsChoice
from atomesh.engine.weights import choice
from atomesh.engine.weights.choice import check_weights, packing_plan
from atomesh.engine.weights.loader import load_weights
from atomesh.engine.weights.source import WeightSource
from atomesh.errors import ConfigurationError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.tiny_model import write_tiny_model

needs_kernels = pytest.mark.skipif(load_kernels() is None, reason="no compiler, or no such processor")
CPU = torch.device("cpu")


@needs_kernels
@pytest.mark.parametrize(
    ("asked", "error"), [("bfloat16", 0.004), ("as-file", 0.004), ("int8", 0.01), ("int4", 0.15)]
)
def test_every_weight_of_a_file_lands_where_it_belongs(
    tmp_path: Path, asked: WeightsChoice, error: float
) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path))
    source = WeightSource(checkpoint)
    models = [
        build_model(checkpoint.config, TensorFactory(torch.float32, CPU)),
        build_model(checkpoint.config, TensorFactory(torch.bfloat16, CPU, packing_plan(asked, source))),
    ]
    for model in models:
        load_weights(model, source)
    hidden = torch.randn(3, checkpoint.config.hidden_size, generator=torch.Generator().manual_seed(1))

    exact, rounded = (model.logits(hidden) for model in models)

    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() / exact.norm() < error


@needs_kernels
def test_names_and_shapes_are_those_of_the_plain_model(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path))
    plan = packing_plan("int8", WeightSource(checkpoint))
    plain, packed = (
        {slot.name: slot.shape for slot in build_model(checkpoint.config, factory).slots()}
        for factory in (TensorFactory(torch.float32, CPU), TensorFactory(torch.bfloat16, CPU, plan))
    )

    assert packed == plain


def test_without_kernels_the_log_says_what_the_weights_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "load_kernels", lambda: None)
    source = WeightSource(open_checkpoint(write_tiny_model(tmp_path)))

    assert [packing_plan(asked, source) for asked in ("auto", "int4")] == [None, None]
    assert caplog.messages == ["weights are held in bfloat16, not as int4, which takes the C++ kernels"]


def test_what_contradicts_the_choice_is_refused() -> None:
    check_weights(EngineOptions(weights="int8"))
    check_weights(EngineOptions(dtype="float32"))
    with pytest.raises(ConfigurationError, match="weights is int8, but dtype float32 means"):
        check_weights(EngineOptions(weights="int8", dtype="float32"))
    with pytest.raises(ConfigurationError, match="weights is int4, which is for device cpu"):
        check_weights(EngineOptions(weights="int4", device="cuda"))
    with pytest.raises(ConfigurationError, match="weights is 'int5'; it must be one of auto, as-file"):
        EngineOptions(weights="int5")  # type: ignore[arg-type]
