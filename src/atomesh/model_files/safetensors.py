"""The safetensors container: an 8-byte header length, a JSON header, the tensors' bytes.

Format: https://github.com/huggingface/safetensors#format. Nothing in the file is trusted: every range is
checked against the file's length before it is used.
"""

from collections.abc import Mapping
from pathlib import Path

import orjson

from atomesh.errors import ModelFileError
from atomesh.model_files.mapped_file import map_file
from atomesh.model_files.stored_tensor import ENCODINGS, StoredTensor

MAX_HEADER_BYTES = 32 << 20
MAX_TENSORS = 100_000
MAX_DIMENSIONS = 8

_PLAIN_ENCODINGS = {name: encoding for name, encoding in ENCODINGS.items() if encoding.block_elements == 1}


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Tensors by name, as views of the mapped file. Raises ModelFileError naming what is wrong."""
    view = map_file(path)
    try:
        return _parse(view)
    except ModelFileError as error:
        raise ModelFileError(f"{path.name}: {error.message}. Download the file again") from error


def _parse(view: memoryview) -> dict[str, StoredTensor]:
    if len(view) < 8:
        raise ModelFileError(f"a safetensors file has at least 8 bytes, this one {len(view)}")
    header_bytes = int.from_bytes(view[:8], "little")
    if header_bytes > min(MAX_HEADER_BYTES, len(view) - 8):
        raise ModelFileError(
            f"the header claims {header_bytes} bytes; the file has {len(view)}, limit {MAX_HEADER_BYTES}"
        )
    entries = _decode_header(view[8 : 8 + header_bytes])
    data = view[8 + header_bytes :]
    return {name: _tensor(name, entry, data) for name, entry in entries.items() if name != "__metadata__"}


def _decode_header(header: memoryview) -> Mapping[str, object]:
    try:
        entries = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise ModelFileError(f"the header is not JSON ({error.msg})") from error
    if not isinstance(entries, dict):
        raise ModelFileError("the header is not a JSON object")
    if len(entries) > MAX_TENSORS:
        raise ModelFileError(f"the header lists {len(entries)} tensors, more than {MAX_TENSORS}")
    return entries


def _tensor(name: str, entry: object, data: memoryview) -> StoredTensor:
    label = name[:80]
    if not isinstance(entry, dict):
        raise ModelFileError(f"tensor {label!r} is not described by an object")
    encoding = _PLAIN_ENCODINGS.get(str(entry.get("dtype"))[:20])
    if encoding is None:
        raise ModelFileError(
            f"tensor {label!r} has dtype {str(entry.get('dtype'))[:20]!r}, which is not supported"
        )
    shape = _sizes(entry.get("shape"), label, "shape", MAX_DIMENSIONS)
    offsets = _sizes(entry.get("data_offsets"), label, "data_offsets", 2)
    if len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(data):
        raise ModelFileError(f"tensor {label!r} lies at {offsets}, outside the {len(data)} bytes of data")
    expected = encoding.num_bytes(shape, label)
    if offsets[1] - offsets[0] != expected:
        raise ModelFileError(
            f"tensor {label!r} of shape {shape} and dtype {encoding.name} needs {expected} bytes, "
            f"the file gives it {offsets[1] - offsets[0]}"
        )
    return StoredTensor(name, shape, encoding, data[offsets[0] : offsets[1]])


def _sizes(value: object, label: str, field: str, limit: int) -> tuple[int, ...]:
    items = value if isinstance(value, list) and len(value) <= limit else [None]
    if not all(type(item) is int and 0 <= item < 1 << 48 for item in items):
        raise ModelFileError(
            f"tensor {label!r}: {field} is not a list of at most {limit} integers below 2^48"
        )
    return tuple(items)
