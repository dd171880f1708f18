"""Writes a safetensors file without the safetensors package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson

PlainType = Literal["F32", "F16", "BF16"]


def write_safetensors(
    path: Path, tensors: Mapping[str, npt.NDArray[np.float32]], dtype: PlainType = "F32"
) -> None:
    """Stores every tensor as `dtype`, rounding to nearest even."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    chunks, offset = [], 0
    for name, values in tensors.items():
        data = plain_bytes(values, dtype)
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [offset, offset + len(data)]}
        chunks.append(data)
        offset += len(data)
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *chunks]))


def plain_bytes(values: npt.NDArray[np.float32], dtype: PlainType) -> bytes:
    """The values as little-endian `dtype`."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype("<f4" if dtype == "F32" else "<f2").tobytes()
