"""Which format each matrix of a model takes, by what was asked for and how the file has it."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atomesh.engine.kernels.packed_matrix import BLOCK, MatrixShape, WeightFormat

PackedChoice = Literal["as-file", "bfloat16", "int8", "int4"]

INT8_GROUP = 64
# Formats as wide as the file's: what is finer than 4-bit blocks with a scale goes to 8 bits.
_AS_FILE: dict[str, WeightFormat] = {
    "Q4_0": "int4",
    "Q4_1": "int4",
    "Q4_K": "int8",
    "Q5_0": "int8",
    "Q5_1": "int8",
    "Q5_K": "int8",
    "Q6_K": "int8",
    "Q8_0": "int8",
}
_WIDEST_LAST: tuple[WeightFormat, ...] = ("int4", "int8", "bfloat16")


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """`encodings` are those of the file's tensors, by parameter name; `threads` will multiply."""

    kernels: ctypes.CDLL
    threads: int
    choice: PackedChoice
    encodings: Mapping[str, str]

    def shape(self, names: Sequence[str], outputs: int, inputs: int) -> MatrixShape:
        """Of one matrix that stacks the weights of those names: the widest format that one of them asks for.

        Blocks that the file has in the format's own group are kept to the bit.
        """
        found = [self.encodings.get(name, "") for name in names]
        asked = [self._format(encoding) for encoding in found]
        chosen = max(asked, key=_WIDEST_LAST.index)
        is_in_blocks = chosen != "int8" or "Q8_0" in found
        return MatrixShape(outputs, inputs, chosen, BLOCK if is_in_blocks else INT8_GROUP)

    def _format(self, encoding: str) -> WeightFormat:
        return _AS_FILE.get(encoding, "bfloat16") if self.choice == "as-file" else self.choice
