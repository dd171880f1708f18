"""What the C++ exports: every function's arguments and result, in one place, as its source declares them."""

from ctypes import CDLL, c_int32, c_int64, c_void_p
from typing import Any

_POINTER, _INT, _LONG = c_void_p, c_int32, c_int64

# Name → (result, arguments). Tensors go as `tensor.data_ptr()`; the caller keeps them alive during the call.
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # thread_pool.cpp
    "atomesh_set_spin": (None, (_INT,)),
    "atomesh_sum_in_parallel": (_LONG, (_POINTER, _LONG, _INT)),
    # matrix_product.cpp: matrix, x, its number and stride, y, its number and stride, rows, threads
    "atomesh_multiply": (
        None,
        (_POINTER, _POINTER, _INT, _LONG, _POINTER, _INT, _LONG, _LONG, _INT),
    ),
    # paged_attention.cpp
    "atomesh_paged_attention": (None, (_POINTER,)),
    # packing.cpp
    "atomesh_matrix_bytes": (_LONG, (_POINTER,)),
    "atomesh_pack_floats": (None, (_POINTER, _LONG, _LONG, _POINTER, _INT)),
    "atomesh_pack_blocks": (None, (_POINTER, _LONG, _LONG, _POINTER, _INT, _INT)),
    "atomesh_unpack_rows": (None, (_POINTER, _POINTER, _LONG, _POINTER, _INT)),
}


def declare(library: CDLL) -> CDLL:
    """Raises AttributeError for a function that the object lacks."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
