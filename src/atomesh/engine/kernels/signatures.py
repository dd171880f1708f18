"""What the C++ exports: every function's arguments and result, in one place, as its source declares them."""

from ctypes import CDLL, c_int32, c_int64, c_void_p
from typing import Any

_POINTER, _INT, _LONG = c_void_p, c_int32, c_int64

# Name → (result, arguments). Tensors go as `tensor.data_ptr()`; the caller keeps them alive during the call.
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # thread_pool.cpp
    "atomesh_set_spin": (None, (_INT,)),
    "atomesh_sum_in_parallel": (_LONG, (_POINTER, _LONG, _INT)),
}


def declare(library: CDLL) -> CDLL:
    """Raises AttributeError for a function that the object lacks."""
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
