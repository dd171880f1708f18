import pytest
import torch

from atomesh.engine.layers.weight_slot import WeightSlot
from atomesh.engine.weights.loader import load_weights
from atomesh.errors import ModelFileError


class Tensors:
    """A source of given tensors; reads are counted."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self.tensors = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        self.reads = 0

    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read_into(self, name: str, out: torch.Tensor) -> None:
        self.reads += 1
        out.copy_(self.tensors[name])


class Slots:
    def __init__(self, *slots: WeightSlot) -> None:
        self._slots = slots

    def slots(self) -> tuple[WeightSlot, ...]:
        return self._slots


def test_fills_parts_of_a_fused_weight_and_adds_offsets() -> None:
    fused = torch.zeros(3, 2)
    model = Slots(WeightSlot("q", fused[:1]), WeightSlot("k", fused[1:], offset=1.0))
    load_weights(model, Tensors(q=torch.full((1, 2), 5.0), k=torch.full((2, 2), 7.0)))
    assert fused.tolist() == [[5, 5], [8, 8], [8, 8]]


def test_a_missing_weight_is_named_before_anything_is_read() -> None:
    source = Tensors(q=torch.zeros(1))
    with pytest.raises(ModelFileError, match="lacks v, w; its"):
        load_weights(Slots(*(WeightSlot(name, torch.zeros(1)) for name in "qwv")), source)
    assert source.reads == 0


def test_many_missing_weights_are_counted() -> None:
    with pytest.raises(ModelFileError, match="lacks a, b, c and 2 more"):
        load_weights(Slots(*(WeightSlot(name, torch.zeros(1)) for name in "abcde")), Tensors())


def test_a_left_over_weight_means_another_architecture() -> None:
    with pytest.raises(ModelFileError, match=r"has k\.bias, for which"):
        load_weights(
            Slots(WeightSlot("q", torch.zeros(1))), Tensors(q=torch.zeros(1), k__bias=torch.zeros(1))
        )


def test_a_tied_head_and_old_rotary_tables_are_passed_over() -> None:
    target = torch.zeros(1)
    extra = {"lm_head__weight": torch.zeros(9), "layers__0__rotary_emb__inv_freq": torch.zeros(9)}
    load_weights(Slots(WeightSlot("q", target)), Tensors(q=torch.ones(1), **extra))
    assert target.tolist() == [1]


def test_a_wrong_shape_is_told_before_anything_is_read() -> None:
    source = Tensors(q=torch.zeros(2, 3))
    with pytest.raises(
        ModelFileError, match=r"weight q has shape \(2, 3\); the configuration makes it \(3, 2\)"
    ):
        load_weights(Slots(WeightSlot("q", torch.zeros(3, 2))), source)
    assert source.reads == 0
