"""How fast this machine does what a model mostly does: multiply matrices, and read memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from atomesh.clock import Clock

PASSES = 3  # the best of which counts: what disturbs a measurement only makes it longer
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of a product of `rows` by a square of `width`, and of a matrix that no cache holds."""

    rows: int
    width: int
    read_bytes: int


_OF_CPU = _Sizes(rows=128, width=1024, read_bytes=64 * 2**20)
_OF_GPU = _Sizes(rows=2048, width=8192, read_bytes=512 * 2**20)


def measure_speed(dtype: torch.dtype, device: torch.device, clock: Clock) -> MachineSpeed:
    """In the number format of the model, with the threads that it will have; some 50 ms on a CPU."""
    sizes = _OF_CPU if device.type == "cpu" else _OF_GPU
    width = sizes.width
    square = torch.ones(width, width, dtype=dtype, device=device)
    rows = torch.ones(sizes.rows, width, dtype=dtype, device=device)
    product_s = _best_s(lambda: functional.linear(rows, square), device, clock)
    large = torch.ones(sizes.read_bytes // dtype.itemsize // width, width, dtype=dtype, device=device)
    read_s = _best_s(lambda: functional.linear(rows[:1], large), device, clock)
    return MachineSpeed(2.0 * sizes.rows * width * width / product_s, sizes.read_bytes / read_s)


def _best_s(work: Callable[[], torch.Tensor], device: torch.device, clock: Clock) -> float:
    """After one pass that may have to set things up."""
    return min([_pass_s(work, device, clock) for _ in range(1 + PASSES)][1:])


def _pass_s(work: Callable[[], torch.Tensor], device: torch.device, clock: Clock) -> float:
    began = clock.now()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(clock.now() - began, _LEAST_S)
