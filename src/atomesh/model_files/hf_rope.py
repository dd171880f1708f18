"""Rotary settings of config.json, in the old spelling (rope_theta, rope_scaling) and that of transformers 5
(rope_parameters, flat or by layer type)."""

from dataclasses import dataclass

from atomesh.errors import ModelFileError
from atomesh.model_files.config import RopeScaling
from atomesh.model_files.config_limits import FACTOR, POSITIONS, SCALE, THETA
from atomesh.model_files.fields import Fields, Limits

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
_FREQUENCY_FACTOR = Limits(1e-3, 1e6)


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    scaling: RopeScaling | None


def read_rope(config: Fields, max_position: int, default_theta: float = 10_000.0) -> Rope:
    """The rotary settings of the layers with full attention."""
    parameters = _full_attention(config.mapping("rope_parameters"))
    theta = parameters.number("rope_theta", THETA, config.number("rope_theta", THETA, default_theta))
    scaling = config.mapping("rope_scaling")
    return Rope(theta, _scaling(scaling if scaling.values else parameters, max_position))


def read_local_theta(config: Fields, default_theta: float = 10_000.0) -> float:
    """Theta of Gemma 3's sliding layers."""
    parameters = config.mapping("rope_parameters").mapping("sliding_attention")
    return parameters.number("rope_theta", THETA, config.number("rope_local_base_freq", THETA, default_theta))


def _full_attention(parameters: Fields) -> Fields:
    return parameters.mapping("full_attention") if parameters.has("full_attention") else parameters


def _scaling(fields: Fields, max_position: int) -> RopeScaling | None:
    kind = fields.choice("rope_type" if fields.has("rope_type") else "type", _KINDS, "default")
    if fields.number("partial_rotary_factor", Limits(0, 1), 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", fields.values["partial_rotary_factor"], "1")
    if kind == "default":
        return None
    original = fields.integer("original_max_position_embeddings", POSITIONS, max_position)
    if kind == "linear":
        return RopeScaling("linear", fields.number("factor", FACTOR), original)
    if kind == "dynamic":
        return RopeScaling("dynamic", fields.number("factor", FACTOR), max_position)
    return _llama3(fields, original) if kind == "llama3" else _yarn(fields, original, max_position)


def _llama3(fields: Fields, original: int) -> RopeScaling:
    low = fields.number("low_freq_factor", _FREQUENCY_FACTOR)
    high = fields.number("high_freq_factor", _FREQUENCY_FACTOR)
    if not low < high:
        raise ModelFileError(f"{fields.source}: low_freq_factor {low} is not below high_freq_factor {high}")
    return RopeScaling(
        "llama3", fields.number("factor", FACTOR), original, low_freq_factor=low, high_freq_factor=high
    )


def _yarn(fields: Fields, original: int, max_position: int) -> RopeScaling:
    return RopeScaling(
        "yarn",
        fields.number("factor", FACTOR, max(max_position / original, 1.0)),
        original,
        beta_fast=fields.number("beta_fast", SCALE, 32.0),
        beta_slow=fields.number("beta_slow", SCALE, 1.0),
        attention_factor=fields.optional_number("attention_factor", SCALE),
        mscale=fields.optional_number("mscale", Limits(0.0, 1e6)),
        mscale_all_dim=fields.optional_number("mscale_all_dim", Limits(0.0, 1e6)),
        truncate=fields.flag("truncate", True),
    )
