"""Stored bytes → torch values."""

import sys

import numpy as np
import numpy.typing as npt
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType

from atomesh.errors import ModelFileError
from atomesh.model_files.stored_tensor import Encoding

_PLAIN = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")

if sys.byteorder != "little":
    raise ModelFileError("model files are little-endian, and so must be the machine that reads them")


def check_encoding(encoding: Encoding, tensor: str) -> None:
    """Raises ModelFileError for an encoding that holds no weights: integers, 8-bit floats without scales."""
    if encoding.name not in _PLAIN and encoding.name not in _QUANTISED:
        raise ModelFileError(
            f"tensor {tensor!r} has type {encoding.name}, which is not supported for weights: "
            "use float32, float16 or bfloat16, or a GGUF file"
        )


def dequantise(data: memoryview, encoding: Encoding) -> torch.Tensor:
    """Flat values of whole blocks in a new tensor: float32 for quantised kinds, plain ones keep their type.

    Takes one of the encodings that `check_encoding` lets pass.
    """
    if encoding.name in _PLAIN:
        return torch.frombuffer(bytearray(data), dtype=_PLAIN[encoding.name])
    return torch.from_numpy(_dequantise_blocks(data, GGMLQuantizationType[encoding.name]))


def _dequantise_blocks(data: memoryview, kind: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    # One long row: gguf works through rows in groups of 16, with a Python round for each.
    row = np.frombuffer(data, dtype=np.uint8).reshape(1, -1)
    with np.errstate(all="ignore"):  # scales of a damaged file may be infinite
        return np.asarray(quants.dequantize(row, kind)).reshape(-1)
