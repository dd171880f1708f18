import pytest
import torch

from atomesh.engine.execution.device import choose_device, choose_dtype, dtype_name
from atomesh.errors import ConfigurationError

CPU = torch.device("cpu")


@pytest.mark.parametrize(("has_amx", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_a_cpu_depends_on_its_tiles(
    monkeypatch: pytest.MonkeyPatch, has_amx: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": has_amx})
    assert choose_dtype("auto", CPU) == dtype


def test_auto_on_a_processor_of_another_make_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "arm"})
    assert choose_dtype("auto", CPU) == torch.float32


def test_an_explicit_dtype_is_taken() -> None:
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    assert dtype_name(choose_dtype("float32", torch.device("cuda"))) == "float32"
    assert dtype_name(torch.bfloat16) == "bfloat16"


def test_a_gpu_that_is_not_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="PyTorch sees no GPU; use device cpu"):
        choose_device("cuda")
    assert choose_device("cpu") == CPU
