"""Attention of a mixed batch by the C++ kernel: one call a layer, for prompts and single tokens alike."""

import ctypes
from array import array
from collections.abc import Sequence

import torch

from atomesh.engine.attention.paged_kv import PagedKV
from atomesh.engine.attention.shape import AttentionShape, SequenceSpan
from atomesh.engine.attention.torch_attention import TorchAttention
from atomesh.engine.kernels.library import load_kernels
from atomesh.engine.kernels.paged_attention import AttentionCall, paged_attention
from atomesh.errors import ConfigurationError

WIDTH = 16  # of the kernel's registers: head_dim and block_size are whole numbers of them
DTYPES = (torch.float32, torch.bfloat16)


def kernel_attention(shape: AttentionShape, pool: PagedKV) -> "CpuAttention | TorchAttention":
    """PyTorch's where there are no kernels; `load_kernels` has said so then."""
    library = load_kernels()
    return TorchAttention(shape, pool) if library is None else CpuAttention(shape, pool, library)


class CpuAttention:
    """Makes the attention of each step, for one model and one pool of a CPU.

    A row's answer is the same bit by bit whatever else is in the batch, however its sequence was cut into
    steps, and on any number of threads. Sums are kept in float32. Raises ConfigurationError for what the
    kernel cannot do.
    """

    def __init__(self, shape: AttentionShape, pool: PagedKV, library: ctypes.CDLL) -> None:
        storage = pool.storage
        if shape.head_dim % WIDTH or pool.block_size % WIDTH or shape.num_heads % shape.num_kv_heads:
            raise ConfigurationError(
                f"attention is kernel, which wants head_dim and block_size in multiples of {WIDTH}, not "
                f"{shape.head_dim} and {pool.block_size}; use attention torch",
                param="attention",
            )
        if storage.device.type != "cpu" or storage.dtype not in DTYPES:
            raise ConfigurationError(
                f"attention is kernel, which reads float32 and bfloat16 on a CPU, not {storage.dtype} on "
                f"{storage.device.type}; use attention torch",
                param="attention",
            )
        self._shape = shape
        self._pool = pool
        self._library = library

    def prepare(self, spans: Sequence[SequenceSpan]) -> "CpuBatchAttention":
        return CpuBatchAttention(self._shape, self._pool, self._library, spans)


class CpuBatchAttention:
    def __init__(
        self,
        shape: AttentionShape,
        pool: PagedKV,
        library: ctypes.CDLL,
        spans: Sequence[SequenceSpan],
    ) -> None:
        self._shape = shape
        self._library = library
        self._storage = pool.storage
        self._spans, self._blocks = array("i"), array("i")
        for span in spans:
            self._spans.extend((span.first_row, span.start, span.end, len(self._blocks)))
            self._blocks.extend(span.blocks[: -(-span.end // pool.block_size)])
        self._call = AttentionCall(
            spans=self._spans.buffer_info()[0],
            blocks=self._blocks.buffer_info()[0],
            block_stride=pool.storage.stride(0),
            num_spans=len(spans),
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            block_size=pool.block_size,
            pool_is_bfloat16=pool.storage.dtype == torch.bfloat16,
            threads=torch.get_num_threads(),
            scale=shape.scale,
            softcap=shape.softcap or 0.0,
        )

    def attend(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        query, key_value = _rows(query), _rows(key_value)
        answer = query.new_empty(query.shape[0], self._shape.num_heads * self._shape.head_dim)
        call = self._call
        call.pool = self._storage.data_ptr() + layer * self._storage.stride(1) * self._storage.itemsize
        call.query, call.query_stride = query.data_ptr(), query.stride(0)
        call.key_value, call.key_value_stride = key_value.data_ptr(), key_value.stride(0)
        call.answer = answer.data_ptr()
        call.query_is_bfloat16 = query.dtype == torch.bfloat16
        call.window = self._shape.windows[layer] or 0
        paged_attention(self._library, call)
        return answer


def _rows(heads: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim], a token's heads side by side; views of a fused product stay views."""
    return heads if heads.stride()[1:] == (heads.shape[2], 1) else heads.contiguous()
