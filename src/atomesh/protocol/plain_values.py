"""Numbers and lists as array libraries make them, as Python's own of the same values."""

from typing import Any

_OWN = frozenset({int, float, bool, str, type(None)})


def plain(value: Any) -> Any:
    """Scalars, arrays and tensors of NumPy and PyTorch, also inside lists and dicts; all else as it is.

    Exact: ints stay ints, bools bools, and a float32 becomes the float of the same value.
    """
    if type(value) in _OWN:
        return value
    if isinstance(value, (list, tuple)):
        return value if _OWN.issuperset(map(type, value)) else [plain(item) for item in value]
    if isinstance(value, dict):
        is_own = _OWN.issuperset(map(type, value)) and _OWN.issuperset(map(type, value.values()))
        return value if is_own else {plain(key): plain(item) for key, item in value.items()}
    is_array = hasattr(value, "dtype") and callable(getattr(value, "tolist", None))
    return value.tolist() if is_array else value
