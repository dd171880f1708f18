import torch

from atomesh.engine.layers.linear import Linear, LinearPart
from atomesh.engine.layers.weight_slot import TensorFactory

FACTORY = TensorFactory(torch.float32, torch.device("cpu"))


def fill(linear: Linear) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    values = {slot.name: torch.randn(slot.target.shape, generator=generator) for slot in linear.slots()}
    for slot in linear.slots():
        slot.target.copy_(values[slot.name])
    return values


def test_parts_are_stacked_in_order() -> None:
    linear = Linear((LinearPart("q", 3, bias=True), LinearPart("k", 2, bias=True)), 4, FACTORY)
    values = fill(linear)
    assert list(values) == ["q.weight", "q.bias", "k.weight", "k.bias"]
    inputs = torch.randn(5, 4)
    expected = [inputs @ values[f"{name}.weight"].T + values[f"{name}.bias"] for name in ("q", "k")]
    torch.testing.assert_close(linear(inputs), torch.cat(expected, 1))


def test_a_part_without_bias_adds_nothing() -> None:
    linear = Linear((LinearPart("a", 3), LinearPart("b", 2, bias=True)), 4, FACTORY)
    values = fill(linear)
    assert list(values) == ["a.weight", "b.weight", "b.bias"]
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(linear(inputs)[:, :3], inputs @ values["a.weight"].T)


def test_inputs_are_rounded_to_the_weights_dtype() -> None:
    linear = Linear((LinearPart("a", 3),), 4, TensorFactory(torch.bfloat16, torch.device("cpu")))
    values = fill(linear)
    inputs = torch.randn(5, 4)
    assert torch.equal(linear(inputs), inputs.bfloat16() @ values["a.weight"].bfloat16().T)
