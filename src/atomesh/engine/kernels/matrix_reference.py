"""What the packed formats hold and what their products come to, said in torch: the reference of the tests."""

import torch
from torch.nn import functional

from atomesh.engine.kernels.packed_matrix import MatrixShape


def quantised_weights(weights: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    """[outputs, inputs] of float32, rounded to what the format can say."""
    if shape.format == "bfloat16":
        return weights.bfloat16().float()
    groups = _in_groups(weights.float(), shape.group)
    if shape.format == "int8":
        scale = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
        return _flat(scale * _steps(groups, scale).clamp(-128, 127), shape)
    low, high = _ends(weights.float(), shape.group)
    scale, minimum = ((high - low) / 15).half().float(), low.half().float()
    return _flat(scale * _steps(groups - minimum, scale).clamp(0, 15) + minimum, shape)


def quantised_product(inputs: torch.Tensor, weights: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    """x Wᵀ in float64, with x rounded as the product of that format does it, `weights` as they are."""
    x = inputs.float()
    if shape.format != "bfloat16":
        groups = _in_groups(x, shape.group)
        most = groups.abs().amax(-1, keepdim=True)
        factor = torch.where(most > 0, torch.full_like(most, 127) / most, 0)  # 127 / most takes reciprocals
        x = ((groups * factor).round() * (most / 127)).flatten(-2)[:, : shape.inputs]
    return (x.double() @ weights.double().T).float()


def _in_groups(values: torch.Tensor, group: int) -> torch.Tensor:
    """[rows, inputs] to [rows, groups, group], zeros after the last input."""
    padded = functional.pad(values, (0, -values.shape[1] % group))
    return padded.view(values.shape[0], -1, group)


def _ends(weights: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest of each group, without what it is padded with."""
    parts = [weights[:, first : first + group] for first in range(0, weights.shape[1], group)]
    low = torch.stack([part.amin(1) for part in parts], 1)
    high = torch.stack([part.amax(1) for part in parts], 1)
    return low[..., None], high[..., None]


def _steps(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, values / scale, 0).round()


def _flat(groups: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    return groups.flatten(-2)[:, : shape.inputs]
