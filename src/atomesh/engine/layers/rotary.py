"""Rotary position embedding (Su et al., arXiv:2104.09864) and the ways to stretch it."""

import math
from dataclasses import dataclass

import torch

from atomesh.model_files.config import RopeScaling


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """For each token, [tokens, 1, head_dim]: cosines, and sines whose first half is negated."""

    cosine: torch.Tensor
    signed_sine: torch.Tensor

    def rotate_(self, heads: torch.Tensor) -> None:
        """Rotate [tokens, heads, head_dim] in place; element i pairs with element i + head_dim / 2."""
        crossed = heads.roll(heads.shape[-1] // 2, -1).mul_(self.signed_sine)
        heads.mul_(self.cosine).add_(crossed)


class RotaryEmbedding:
    def __init__(
        self, head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device
    ) -> None:
        self._head_dim = head_dim
        self._theta = theta
        self._scaling = scaling
        self._magnitude = yarn_magnitude(scaling) if scaling is not None and scaling.kind == "yarn" else 1.0
        self._frequencies = scaled_frequencies(head_dim, theta, scaling).to(device)

    def rows(self, positions: torch.Tensor, dtype: torch.dtype) -> RotaryRows:
        """Angles are computed in float32 for `positions` [tokens] and rounded to `dtype` at the end."""
        angles = positions.float()[:, None] * self._frequencies_at(positions)
        cosine, sine = angles.cos(), angles.sin()
        if self._magnitude != 1.0:
            cosine, sine = cosine * self._magnitude, sine * self._magnitude
        return RotaryRows(
            torch.cat((cosine, cosine), -1).to(dtype)[:, None],
            torch.cat((-sine, sine), -1).to(dtype)[:, None],
        )

    def _frequencies_at(self, positions: torch.Tensor) -> torch.Tensor:
        if self._scaling is None or self._scaling.kind != "dynamic":
            return self._frequencies
        return dynamic_frequencies(self._head_dim, self._theta, self._scaling, positions)


def scaled_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """Radians per token, [head_dim / 2]; a dynamic scaling does not touch them within the trained context."""
    plain = 1.0 / theta ** _exponents(head_dim)
    if scaling is None or scaling.kind == "dynamic":
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(plain, scaling)
    return _yarn_frequencies(plain, head_dim, theta, scaling)


def dynamic_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling, positions: torch.Tensor
) -> torch.Tensor:
    """NTK-aware frequencies [tokens, head_dim / 2] that grow with a token's own position.

    They depend on nothing else, so that chunks, cached prefixes and preempted requests give the same KV: what
    transformers computes while it decodes token by token past the trained context.
    """
    length = (positions + 1).clamp(min=scaling.original_max_position).double()
    growth = scaling.factor * length / scaling.original_max_position - (scaling.factor - 1)
    bases = (theta * growth ** (head_dim / (head_dim - 2))).float()
    return 1.0 / bases[:, None] ** _exponents(head_dim).to(positions.device)


def yarn_magnitude(scaling: RopeScaling) -> float:
    """The factor on cosines and sines that keeps YaRN's attention entropy (arXiv:2309.00071, section 3.4)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _llama3_frequencies(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    wave_lengths = 2 * math.pi / plain
    blend = (scaling.original_max_position / wave_lengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * plain / scaling.factor + blend * plain


def _yarn_frequencies(plain: torch.Tensor, head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Dimensions that turn often in the trained context are kept, those that turn seldom interpolated."""

    def dimension(turns: float) -> float:
        longest = scaling.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(longest) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    kept = 1 - ramp
    return plain / scaling.factor * (1 - kept) + plain * kept
