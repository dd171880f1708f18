"""What the operator may choose about an engine; everything else follows from the model and the machine."""

from dataclasses import dataclass
from typing import Any, Literal

from atomesh.errors import ConfigurationError
from atomesh.protocol.plain_values import plain

DtypeChoice = Literal["auto", "float32", "bfloat16"]
WeightsChoice = Literal["auto", "as-file", "bfloat16", "int8", "int4"]
DeviceKind = Literal["cpu", "cuda"]
AttentionChoice = Literal["torch", "kernel"]
SchedulingPolicy = Literal["fcfs", "priority"]

BLOCK_SIZES = (16, 32)

_CHOICES: dict[str, tuple[object, ...]] = {
    "dtype": ("auto", "float32", "bfloat16"),
    "weights": ("auto", "as-file", "bfloat16", "int8", "int4"),
    "device": ("cpu", "cuda"),
    "attention": ("torch", "kernel"),
    "block_size": BLOCK_SIZES,
    "scheduling_policy": ("fcfs", "priority"),
    "enable_prefix_cache": (True, False),
    "enable_chunked_prefill": (True, False),
}
_MOST = {
    "max_model_len": 2**31 - 1,
    "max_num_seqs": 2**31 - 1,
    "max_num_batched_tokens": 2**31 - 1,
    "kv_memory": 2**63 - 1,
    "memory_sharers": 1024,
    "threads": 1024,
}
_MAY_BE_NONE = frozenset({"max_model_len", "kv_memory", "threads"})


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Lengths in tokens, memory in bytes. `cuda` also means AMD's GPUs, through ROCm's PyTorch.

    None: `max_model_len` follows from the model and the pool, `kv_memory` from the free memory, and `threads`
    is PyTorch's choice. `memory_sharers` is how many engines, this one included, start on what memory is free
    now: each takes its part of it. `weights` are of the type `dtype` (auto), or packed for C++ kernels,
    and all else is bfloat16. NumPy's scalars are taken for the ints and bools that they are. Raises
    ConfigurationError, which names the option, its value and its range.
    """

    dtype: DtypeChoice = "auto"
    weights: WeightsChoice = "auto"
    device: DeviceKind = "cpu"
    attention: AttentionChoice = "torch"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 32
    kv_memory: int | None = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    enable_prefix_cache: bool = True
    enable_chunked_prefill: bool = True
    threads: int | None = None
    memory_sharers: int = 1

    def __post_init__(self) -> None:
        for name in (*_CHOICES, *_MOST):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name, most in _MOST.items():
            _check_count(name, getattr(self, name), most)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if type(value) is not type(choices[0]) or value not in choices:
        raise ConfigurationError(
            f"{name} is {value!r:.80}; it must be one of {', '.join(map(str, choices))}", param=name
        )


def _check_count(name: str, value: Any, most: int) -> None:
    if value is None and name in _MAY_BE_NONE:
        return
    if type(value) is not int:
        raise ConfigurationError(
            f"{name} is {value!r:.80} ({type(value).__name__}); it must be an int from 1 to {most}: give "
            "one, or leave it out",
            param=name,
        )
    if value < 1:
        raise ConfigurationError(f"{name} is {value}; it must be at least 1: raise it", param=name)
    if value > most:
        raise ConfigurationError(f"{name} is {value}; it must be at most {most}: lower it", param=name)
