"""Rotary settings of a GGUF file."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from atomesh.errors import ModelFileError
from atomesh.model_files.config import RopeScaling
from atomesh.model_files.config_limits import FACTOR, POSITIONS, SCALE
from atomesh.model_files.fields import Fields
from atomesh.model_files.stored_tensor import StoredTensor


@dataclass(frozen=True, slots=True)
class RopeShape:
    theta: float
    head_dim: int
    max_position: int


def read_gguf_scaling(
    fields: Fields, arch: str, shape: RopeShape, tensors: Mapping[str, StoredTensor]
) -> RopeScaling | None:
    factors = tensors.get("rope_freqs.weight")
    if factors is not None:
        return _llama3_scaling(factors, shape)
    prefix = f"{arch}.rope.scaling."
    kind = fields.choice(f"{prefix}type", ("none", "linear", "yarn"), "linear")
    old_factor = fields.number(f"{arch}.rope.scale_linear", FACTOR, 1.0)
    factor = fields.number(f"{prefix}factor", FACTOR, old_factor)
    if kind == "none" or factor == 1.0:
        return None
    original = fields.integer(f"{prefix}original_context_length", POSITIONS, shape.max_position)
    if kind == "linear":
        return RopeScaling("linear", factor, original)
    attention = fields.optional_number(f"{prefix}attn_factor", SCALE)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=fields.number(f"{prefix}yarn_beta_fast", SCALE, 32.0),
        beta_slow=fields.number(f"{prefix}yarn_beta_slow", SCALE, 1.0),
        attention_factor=None if attention is None else attention * (0.1 * math.log(factor) + 1.0),
    )


def llama3_frequency_factors(scaling: RopeScaling, theta: float, head_dim: int) -> list[float]:
    """What each of the head_dim / 2 rotary frequencies is divided by (Llama 3.1's `apply_scaling`)."""
    factors = []
    for pair in range(head_dim // 2):
        turns = scaling.original_max_position / (2 * math.pi * theta ** (2 * pair / head_dim))
        smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1.0 / ((1.0 - smooth) / scaling.factor + smooth))
    return factors


def _llama3_scaling(tensor: StoredTensor, shape: RopeShape) -> RopeScaling | None:
    count = shape.head_dim // 2
    if tensor.encoding.name != "F32" or tensor.shape != (count,):
        raise ModelFileError(
            f"tensor 'rope_freqs.weight' is {tensor.encoding.name} of shape {tensor.shape}; "
            f"it must be F32 of shape ({count},)"
        )
    factors = struct.unpack(f"<{count}f", tensor.data)
    if all(factor == 1.0 for factor in factors):
        return None
    factor = round(max(factors), 3)
    scaling = RopeScaling("llama3", factor if FACTOR.low <= factor <= FACTOR.high else 1.0, 8192)
    expected = llama3_frequency_factors(scaling, shape.theta, shape.head_dim)
    if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(factors, expected, strict=True)):
        raise ModelFileError(
            "tensor 'rope_freqs.weight' does not follow Llama 3.1's frequency scaling, the only one "
            "supported: use the Hugging Face directory of this model"
        )
    return scaling
