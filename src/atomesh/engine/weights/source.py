"""A checkpoint's weights under Hugging Face's parameter names, read straight into where they are to lie."""

from dataclasses import dataclass

import torch

from atomesh.engine.weights.dequantise import dequantise
from atomesh.engine.weights.gguf_names import hf_name, norm_offset, rotates_pairs
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


@dataclass(frozen=True, slots=True)
class _Parameter:
    stored: StoredTensor
    rotated_head_dim: int = 0  # 0: rows are in Hugging Face's order
    offset: float = 0.0


class WeightSource:
    """Raises ModelFileError when built on a checkpoint whose weights do not belong to its configuration."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = checkpoint.config
        named = _gguf_parameter if checkpoint.format == "gguf" else _hf_parameter
        pairs = (named(stored, config) for stored in checkpoint.tensors.values())
        self._parameters = dict(pair for pair in pairs if pair is not None)
        self._check_embedding(config)

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
        with torch.no_grad():
            _read_rows(parameter, rows)

    def _find(self, name: str) -> _Parameter:
        parameter = self._parameters.get(name)
        if parameter is None:
            raise ModelFileError(f"tensor {name!r} is missing. Download the model again")
        return parameter

    def _check_embedding(self, config: ModelConfig) -> None:
        expected = (config.vocab_size, config.hidden_size)
        shape = self.shape("model.embed_tokens.weight")
        if shape != expected:
            raise ModelFileError(f"the embedding has shape {shape}, but the configuration says {expected}")
        self.shape(f"model.layers.{config.num_layers - 1}.input_layernorm.weight")


def _gguf_parameter(stored: StoredTensor, config: ModelConfig) -> tuple[str, _Parameter] | None:
    name = hf_name(stored.name, config.family)
    if name is None:
        return None
    rotated = config.head_dim if rotates_pairs(name, config.family) else 0
    return name, _Parameter(stored, rotated, norm_offset(name, config.family))


def _hf_parameter(stored: StoredTensor, config: ModelConfig) -> tuple[str, _Parameter] | None:
    for prefix, plain in _PREFIXES:
        if stored.name.startswith(prefix):
            return plain + stored.name.removeprefix(prefix), _Parameter(stored)
    return (stored.name, _Parameter(stored)) if stored.name.startswith(("model.", "lm_head.")) else None


def _read_rows(parameter: _Parameter, out: torch.Tensor) -> None:
    stored, unit = parameter.stored, parameter.rotated_head_dim or 1
    num_rows, columns = out.shape
    if num_rows % unit:
        raise ModelFileError(
            f"tensor {stored.name!r} has {num_rows} rows, which are not whole heads of {unit}"
        )
    row_bytes = len(stored.data) // num_rows
    step = max(_CHUNK_ELEMENTS // (columns * unit), 1) * unit
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        values = dequantise(stored.data[start * row_bytes : stop * row_bytes], stored.encoding)
        if parameter.rotated_head_dim:
            values = values.view(-1, unit // 2, 2, columns).transpose(1, 2).reshape(stop - start, columns)
        if parameter.offset:
            values = values.float() - parameter.offset
        out[start:stop].copy_(values.view(stop - start, columns))
