import pytest
import torch

from atomesh.engine.layers.norm import RMSNorm
from atomesh.engine.layers.weight_slot import TensorFactory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_divides_by_the_root_mean_square_in_float32(dtype: torch.dtype) -> None:
    norm = RMSNorm("norm", 2, 1.0, TensorFactory(dtype, torch.device("cpu")))
    (slot,) = norm.slots()
    slot.target.copy_(torch.tensor([1.0, 10.0]))
    result = norm(torch.tensor([[3.0, 5.0]], dtype=dtype))
    scale = (1.0 + (9 + 25) / 2) ** -0.5
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.tensor([[3 * scale, 50 * scale]]))


def test_names_its_weight_and_its_offset() -> None:
    (slot,) = RMSNorm("a.b", 2, 1.0, TensorFactory(torch.bfloat16, torch.device("cpu")), offset=1.0).slots()
    assert (slot.name, slot.offset, slot.target.dtype) == ("a.b.weight", 1.0, torch.float32)
