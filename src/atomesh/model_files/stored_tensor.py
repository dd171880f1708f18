"""A tensor as it lies in a file, and how its elements are encoded there."""

from dataclasses import dataclass
from math import prod

from atomesh.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Encoding:
    """`block_elements` elements of a row take `block_bytes` bytes; plain types have blocks of one element."""

    name: str
    block_elements: int
    block_bytes: int

    def num_bytes(self, shape: tuple[int, ...], tensor: str) -> int:
        """Bytes of a tensor of that shape; ModelFileError if its rows are not whole blocks."""
        row = shape[-1] if shape else 1
        if row % self.block_elements:
            raise ModelFileError(
                f"tensor {tensor!r} has rows of {row} elements, not a multiple of the {self.block_elements} "
                f"in a block of {self.name}"
            )
        return prod(shape) // self.block_elements * self.block_bytes


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`shape` is outermost dimension first; `data` is a view of the mapped file: the tensor's bytes."""

    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    data: memoryview


def _table(*rows: tuple[str, int, int]) -> dict[str, Encoding]:
    return {name: Encoding(name, elements, size) for name, elements, size in rows}


# Block sizes: ggml/src/ggml-common.h; the plain types are shared with safetensors.
ENCODINGS = _table(
    ("F64", 1, 8),
    ("F32", 1, 4),
    ("F16", 1, 2),
    ("BF16", 1, 2),
    ("Q4_0", 32, 18),
    ("Q4_1", 32, 20),
    ("Q5_0", 32, 22),
    ("Q5_1", 32, 24),
    ("Q8_0", 32, 34),
    ("Q4_K", 256, 144),
    ("Q5_K", 256, 176),
    ("Q6_K", 256, 210),
    ("BOOL", 1, 1),
    ("U8", 1, 1),
    ("I8", 1, 1),
    ("F8_E5M2", 1, 1),
    ("F8_E4M3", 1, 1),
    ("U16", 1, 2),
    ("I16", 1, 2),
    ("U32", 1, 4),
    ("I32", 1, 4),
    ("U64", 1, 8),
    ("I64", 1, 8),
)
