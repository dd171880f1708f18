from pathlib import Path
from typing import get_args

import pytest
import torch

from atomesh.engine.layers.weight_slot import TensorFactory
from atomesh.engine.models.registry import MODELS, build_model
from atomesh.engine.weights.source import WeightSource
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.config import Family
from atomesh.testing.tiny_model import write_tiny_model


@pytest.mark.parametrize("family", get_args(Family))
def test_every_family_has_a_slot_for_each_of_its_weights(family: Family, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family))
    model = build_model(checkpoint.config, TensorFactory(torch.float32, torch.device("cpu")))
    source = WeightSource(checkpoint)
    slots = {slot.name: tuple(slot.target.shape) for slot in model.slots()}
    assert slots == {name: tuple(source.shape(name)) for name in source.names()}


def test_the_registry_names_every_family() -> None:
    assert set(MODELS) == set(get_args(Family))
