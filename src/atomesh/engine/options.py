"""What the operator may choose about an engine; everything else follows from the model and the machine."""

from dataclasses import dataclass
from typing import Literal

from atomesh.errors import ConfigurationError

DtypeChoice = Literal["auto", "float32", "bfloat16"]
DeviceKind = Literal["cpu", "cuda"]
Policy = Literal["fcfs", "priority"]

BLOCK_SIZES = (16, 32)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Lengths in tokens, memory in bytes. `cuda` also means AMD's GPUs, through ROCm's PyTorch.

    None: `max_model_len` follows from the model and the pool, `kv_memory` from the free memory, and `threads`
    is PyTorch's choice. Raises ConfigurationError, which names the option, its value and its range.
    """

    dtype: DtypeChoice = "auto"
    device: DeviceKind = "cpu"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 32
    kv_memory: int | None = None
    policy: Policy = "fcfs"
    enable_prefix_cache: bool = True
    enable_chunked_prefill: bool = True
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_choice("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _check_choice("device", self.device, ("cpu", "cuda"))
        _check_choice("block_size", self.block_size, BLOCK_SIZES)
        _check_choice("policy", self.policy, ("fcfs", "priority"))
        _check_positive("max_num_seqs", self.max_num_seqs)
        _check_positive("max_num_batched_tokens", self.max_num_batched_tokens)
        for name in ("max_model_len", "kv_memory", "threads"):
            value = getattr(self, name)
            if value is not None:
                _check_positive(name, value)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"{name} is {value!r}; it must be one of {', '.join(map(str, choices))}", param=name
        )


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigurationError(f"{name} is {value}; it must be at least 1", param=name)
