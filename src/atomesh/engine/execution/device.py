"""The machine under the engine: which device, which number format, how many threads."""

import torch

from atomesh.engine.options import DeviceKind, DtypeChoice
from atomesh.errors import ConfigurationError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(kind: DeviceKind) -> torch.device:
    """ConfigurationError if the machine has none of that kind."""
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(
            "device is cuda, but PyTorch sees no GPU; use device cpu, or a PyTorch built for this GPU",
            param="device",
        )
    return torch.device(kind)


def choose_dtype(choice: DtypeChoice, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the device multiplies it in tiles (a GPU, or Intel's AMX), else float32.

    Without AMX, PyTorch's bfloat16 products on a CPU are slower than its float32 ones.
    """
    if choice != "auto":
        return DTYPES[choice]
    has_tiles = device.type != "cpu" or bool(torch.cpu.get_capabilities().get("amx_bf16", False))
    return torch.bfloat16 if has_tiles else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    return next(name for name, known in DTYPES.items() if known == dtype)
