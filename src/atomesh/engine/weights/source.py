"""A checkpoint's weights under Hugging Face's parameter names, read straight into where they are to lie."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atomesh.engine.weights.dequantise import check_encoding, dequantise
from atomesh.engine.weights.gguf_names import hf_name, norm_offset, rotates_pairs
from atomesh.engine.weights.shapes import check_shapes
from atomesh.errors import ModelFileError
from atomesh.model_files.checkpoint import Checkpoint
from atomesh.model_files.config import ModelConfig
from atomesh.model_files.stored_tensor import StoredTensor

_CHUNK_ELEMENTS = 1 << 20
# A text model inside a multimodal checkpoint, in the old and the new layout.
_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
# The vision side of such a checkpoint, and rotary factors, which the configuration already tells.
_NOT_PARAMETERS = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "rope_freqs.",
)


@dataclass(frozen=True, slots=True)
class _Parameter:
    stored: StoredTensor
    rotated_head_dim: int = 0  # 0: rows are in Hugging Face's order
    offset: float = 0.0


class WeightSource:
    """Raises ModelFileError when built on a checkpoint whose weights do not belong to its configuration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        convert = _gguf_parameter if checkpoint.format == "gguf" else _hf_parameter
        self._parameters = dict(
            convert(stored, config)
            for name, stored in checkpoint.tensors.items()
            if not name.startswith(_NOT_PARAMETERS)
        )
        check_shapes(config, {name: item.stored.shape for name, item in self._parameters.items()})

    def names(self) -> frozenset[str]:
        return frozenset(self._parameters)

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises ModelFileError if there is no such parameter."""
        return self._find(name).stored.shape

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fills `out`, of the parameter's shape, any float dtype and device, in row chunks of bounded size.

        Raises ModelFileError if the parameter is missing, of another shape, or of a type without weights.
        """
        parameter = self._find(name)
        stored = parameter.stored
        if tuple(out.shape) != stored.shape or not 1 <= out.dim() <= 2:
            raise ModelFileError(
                f"tensor {name!r} has shape {stored.shape}; its configuration says {tuple(out.shape)}"
            )
        rows = out.unsqueeze(1 if parameter.rotated_head_dim else 0) if out.dim() == 1 else out
        check_encoding(stored.encoding, name)
        with torch.no_grad():
            _read_rows(parameter, rows)

    def encoding(self, name: str) -> str:
        """How the file has it, such as Q4_1. Raises ModelFileError if there is no such parameter."""
        return self._find(name).stored.encoding.name

    def rows(self, name: str) -> Iterator[torch.Tensor]:
        """A matrix's rows in order, in parts of bounded size, of any float dtype. Raises as `read_into`."""
        parameter = self._find(name)
        check_encoding(parameter.stored.encoding, name)
        yield from _row_chunks(parameter, *parameter.stored.shape)

    def block_rows(self, name: str) -> Iterator[torch.Tensor]:
        """The same as the file's bytes, uint8 [rows, bytes of a row]."""
        parameter = self._find(name)
        for raw in _raw_chunks(parameter, *parameter.stored.shape):
            rows = torch.frombuffer(bytearray(raw.data), dtype=torch.uint8).view(raw.count, -1)
            yield _in_order(parameter, rows)

    def _find(self, name: str) -> _Parameter:
        parameter = self._parameters.get(name)
        if parameter is None:
            raise ModelFileError(f"tensor {name!r} is missing. Download the model again")
        return parameter


def _gguf_parameter(stored: StoredTensor, config: ModelConfig) -> tuple[str, _Parameter]:
    name = hf_name(stored.name, config.family) or stored.name
    rotated = config.head_dim if rotates_pairs(name, config.family) else 0
    return name, _Parameter(stored, rotated, norm_offset(name, config.family))


def _hf_parameter(stored: StoredTensor, _: ModelConfig) -> tuple[str, _Parameter]:
    for prefix, plain in _PREFIXES:
        if stored.name.startswith(prefix):
            return plain + stored.name.removeprefix(prefix), _Parameter(stored)
    return stored.name, _Parameter(stored)


@dataclass(frozen=True, slots=True)
class _RawRows:
    count: int
    data: memoryview


def _read_rows(parameter: _Parameter, out: torch.Tensor) -> None:
    start = 0
    for values in _row_chunks(parameter, *out.shape):
        out[start : start + values.shape[0]].copy_(values)
        start += values.shape[0]


def _row_chunks(parameter: _Parameter, num_rows: int, columns: int) -> Iterator[torch.Tensor]:
    for raw in _raw_chunks(parameter, num_rows, columns):
        values = _in_order(parameter, dequantise(raw.data, parameter.stored.encoding).view(-1, columns))
        yield values.float() - parameter.offset if parameter.offset else values


def _raw_chunks(parameter: _Parameter, num_rows: int, columns: int) -> Iterator[_RawRows]:
    """Whole heads at a time, where their rows are interleaved."""
    stored, unit = parameter.stored, parameter.rotated_head_dim or 1
    if num_rows % unit:
        raise ModelFileError(
            f"tensor {stored.name!r} has {num_rows} rows, which are not whole heads of {unit}"
        )
    row_bytes = len(stored.data) // num_rows
    step = max(_CHUNK_ELEMENTS // (columns * unit), 1) * unit
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        yield _RawRows(stop - start, stored.data[start * row_bytes : stop * row_bytes])


def _in_order(parameter: _Parameter, rows: torch.Tensor) -> torch.Tensor:
    """Rows as Hugging Face has them: the two halves of a head one after the other."""
    unit = parameter.rotated_head_dim
    if not unit:
        return rows
    return rows.view(-1, unit // 2, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
