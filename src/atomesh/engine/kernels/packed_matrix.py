"""A weight matrix packed for the C++ product: bfloat16, or codes of 8 or 4 bits with a scale for each group.

The layouts are in `sources/matrix.h`; `matrix_reference` says in torch what the products come to.
"""

import ctypes
from dataclasses import dataclass
from typing import Literal

import torch

from atomesh.errors import ConfigurationError

WeightFormat = Literal["bfloat16", "int8", "int4"]
BlockEncoding = Literal["Q4_0", "Q4_1", "Q8_0"]

BLOCK = 32  # weights in a GGUF block
_FORMATS: dict[WeightFormat, int] = {"bfloat16": 0, "int8": 1, "int4": 2}
_NUMBERS = {torch.float32: 0, torch.bfloat16: 1}
_BLOCKS: dict[BlockEncoding, int] = {"Q4_0": 0, "Q4_1": 1, "Q8_0": 2}


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """W [outputs, inputs]; `group` neighbouring inputs of an output share a scale.

    Weights of `int8` are scale · code, code in −128 … 127; those of `int4` scale · code + minimum, code in
    0 … 15. Activations meet codes as int8, scaled by their largest magnitude within each row and group.
    """

    outputs: int
    inputs: int
    format: WeightFormat
    group: int = BLOCK

    def __post_init__(self) -> None:
        if self.outputs < 1 or self.inputs < 1:
            raise ConfigurationError(f"a matrix of {self.outputs} × {self.inputs} holds no weights")
        if self.group < 8 or self.group % 8:
            raise ConfigurationError(f"group is {self.group} inputs; it must be a multiple of 8, such as 32")


class _Matrix(ctypes.Structure):
    """As `Matrix` in sources/matrix.h."""

    _fields_ = (
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("format", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class PackedMatrix:
    """To be filled row by row, then multiplied by; weights never given are zero."""

    def __init__(
        self, kernels: ctypes.CDLL, shape: MatrixShape, threads: int, bias: torch.Tensor | None = None
    ) -> None:
        """`bias` is float32 [outputs], and may be filled later."""
        self.shape = shape
        self.bias = bias
        self._kernels = kernels
        self._threads = threads
        self._matrix = _Matrix(shape.outputs, shape.inputs, shape.group, _FORMATS[shape.format], None, None)
        self._reference = ctypes.byref(self._matrix)
        num_bytes = int(kernels.atomesh_matrix_bytes(self._reference))
        self.storage = torch.zeros(num_bytes, dtype=torch.uint8)
        self._matrix.data = self.storage.data_ptr()
        if bias is not None:
            self._matrix.bias = bias.data_ptr()

    def pack(self, first_output: int, weights: torch.Tensor) -> None:
        """[rows, inputs] of any float dtype become the outputs from `first_output` on."""
        rows = weights.float().contiguous()
        self._check_rows(first_output, rows.shape[0])
        if rows.shape[1] != self.shape.inputs:
            raise ConfigurationError(f"rows of {rows.shape[1]} weights; the matrix has {self.shape.inputs}")
        self._kernels.atomesh_pack_floats(
            self._reference, first_output, rows.shape[0], rows.data_ptr(), self._threads
        )

    def pack_blocks(self, first_output: int, blocks: torch.Tensor, encoding: BlockEncoding) -> None:
        """[rows, bytes of a row] as in a GGUF file, kept to the last bit. See `as_block_encoding`."""
        if as_block_encoding(self.shape, encoding) is None:
            raise ConfigurationError(f"{encoding} blocks do not go into {self.shape}")
        rows = blocks.contiguous()
        self._check_rows(first_output, rows.shape[0])
        self._kernels.atomesh_pack_blocks(
            self._reference, first_output, rows.shape[0], rows.data_ptr(), _BLOCKS[encoding], self._threads
        )

    def multiply(self, inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[rows, inputs] of float32 or bfloat16 to [rows, outputs] of `dtype`, one of them as well.

        A row's result is the same to the bit whatever the other rows and the number of threads.
        """
        x = inputs if inputs.stride(1) == 1 and inputs.dtype in _NUMBERS else inputs.float().contiguous()
        y = torch.empty(x.shape[0], self.shape.outputs, dtype=dtype)
        self._kernels.atomesh_multiply(
            self._reference,
            x.data_ptr(),
            _NUMBERS[x.dtype],
            x.stride(0),
            y.data_ptr(),
            _NUMBERS[dtype],
            self.shape.outputs,
            x.shape[0],
            self._threads,
        )
        return y

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """[count, inputs] of float32: the weights of the chosen outputs, int64 in range."""
        chosen = outputs.contiguous()
        found = torch.empty(chosen.shape[0], self.shape.inputs)
        self._kernels.atomesh_unpack_rows(
            self._reference, chosen.data_ptr(), chosen.shape[0], found.data_ptr(), self._threads
        )
        return found

    def _check_rows(self, first: int, count: int) -> None:
        if first < 0 or first + count > self.shape.outputs:
            raise ConfigurationError(
                f"rows {first} to {first + count} do not lie within the {self.shape.outputs} of the matrix"
            )


def as_block_encoding(shape: MatrixShape, encoding: str) -> BlockEncoding | None:
    """The encoding, if its blocks can be kept as they are in a matrix of that shape; else None."""
    is_whole = shape.group == BLOCK and shape.inputs % BLOCK == 0
    if is_whole and shape.format == "int4" and encoding in ("Q4_0", "Q4_1"):
        return "Q4_0" if encoding == "Q4_0" else "Q4_1"
    return "Q8_0" if is_whole and shape.format == "int8" and encoding == "Q8_0" else None
