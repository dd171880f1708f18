"""Attention of one layer over the paged pool, by `sources/paged_attention.cpp`.

What it computes in torch is `attention/torch_attention.py`, and token by token `attention/reference.py`.
"""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class AttentionCall(ctypes.Structure):
    """`Call` of the C++, field by field; strides in elements, `window` and `softcap` 0 for none.

    `spans` are four int32 each: first row, start, end, and where in `blocks` the sequence's begin.
    """

    _fields_ = (
        ("pool", c_void_p),
        ("query", c_void_p),
        ("key_value", c_void_p),
        ("answer", c_void_p),
        ("spans", c_void_p),
        ("blocks", c_void_p),
        ("block_stride", c_int64),
        ("query_stride", c_int64),
        ("key_value_stride", c_int64),
        ("num_spans", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("block_size", c_int32),
        ("window", c_int32),
        ("pool_is_bfloat16", c_int32),
        ("query_is_bfloat16", c_int32),
        ("threads", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
    )


def paged_attention(library: ctypes.CDLL, call: AttentionCall) -> None:
    """Keep the new keys and values, then answer; the tensors behind the pointers stay the caller's."""
    library.atomesh_paged_attention(ctypes.byref(call))
