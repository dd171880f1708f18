"""The GGUF container: key/value metadata, tensor infos, aligned tensor bytes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. Nothing in
the file is trusted: counts, lengths and offsets are bounded, and checked against the file before use.
"""

import struct
from dataclasses import dataclass

from atomesh.errors import ModelFileError
from atomesh.model_files.stored_tensor import ENCODINGS, Encoding, StoredTensor

MAX_HEADER_BYTES = 64 << 20
MAX_KEYS = 16_384
MAX_TENSORS = 16_384
MAX_ARRAY_ELEMENTS = (
    1 << 21
)  # over all arrays of a file; the largest vocabularies have three arrays of 262,144
MAX_KEY_BYTES = 65_535
MAX_TENSOR_NAME_BYTES = 256
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}

_TENSOR_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    30: "BF16",
}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, object]
    tensors: dict[str, StoredTensor]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]
    encoding: Encoding
    offset: int


def parse_gguf(view: memoryview) -> GgufHeader:
    """Metadata (arrays as lists) and tensors (views of `view`). Raises ModelFileError: what is wrong."""
    cursor = _Cursor(view)
    if bytes(cursor.take(4, "the magic")) != b"GGUF":
        raise ModelFileError("it does not begin with 'GGUF', so it is not a GGUF file")
    version = cursor.u32("the version")
    if version not in (2, 3):
        big_endian = " (a big-endian file)" if version >= 1 << 16 else ""
        raise ModelFileError(
            f"GGUF version {version}{big_endian} is not supported; 2 and 3, little-endian, are"
        )
    num_tensors = _bounded(cursor.u64("the tensor count"), MAX_TENSORS, "tensors")
    num_keys = _bounded(cursor.u64("the key count"), MAX_KEYS, "metadata keys")
    metadata = _read_metadata(cursor, num_keys)
    infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    return GgufHeader(metadata, _place_tensors(view, infos, cursor.position, _alignment(metadata)))


class _Cursor:
    """Reads forward through the header; every method raises ModelFileError instead of passing its end."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._end = min(len(view), MAX_HEADER_BYTES)
        self._elements_left = MAX_ARRAY_ELEMENTS
        self.position = 0

    def take(self, count: int, what: str) -> memoryview:
        if count > self._end - self.position:
            raise ModelFileError(
                f"{what} at byte {self.position} takes {count} bytes, but the header ends at {self._end}"
            )
        start, self.position = self.position, self.position + count
        return self._view[start : self.position]

    def u32(self, what: str) -> int:
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        raw = self.take(_bounded(self.u64(what), limit, f"bytes in {what}"), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(f"{what} is not UTF-8") from error

    def scalar(self, kind: int, what: str) -> object:
        code = _scalar_code(kind, what)
        value = struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]
        return bool(value) if kind == _BOOL else value

    def array(self, what: str) -> list[object]:
        kind, count = self.u32(what), self.u64(what)
        self._elements_left -= _bounded(count, self._elements_left, f"more array elements ({what})")
        if kind == _STRING:
            return self._strings(count, what)
        code = _scalar_code(kind, what)
        raw = self.take(count * struct.calcsize("<" + code), what)
        values = list(struct.unpack(f"<{count}{code}", raw))
        return [bool(value) for value in values] if kind == _BOOL else values

    def _strings(self, count: int, what: str) -> list[object]:
        view, position, end, length_at = self._view, self.position, self._end, _U64.unpack_from
        strings: list[object] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_at(view, position)[0]
                if position > end:
                    raise ModelFileError(
                        f"an element of {what} reaches byte {position}, the header ends at {end}"
                    )
                strings.append(str(view[start:position], "utf-8"))
        except struct.error as error:
            raise ModelFileError(f"{what} does not have the {count} elements that it claims") from error
        except UnicodeDecodeError as error:
            raise ModelFileError(f"an element of {what} is not UTF-8") from error
        self.position = position
        return strings


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        key = cursor.string("a metadata key", MAX_KEY_BYTES)
        label = f"metadata {key[:80]!r}"
        if key in metadata:
            raise ModelFileError(f"{label} appears twice")
        kind = cursor.u32(label)
        if kind == _STRING:
            metadata[key] = cursor.string(label)
        elif kind == _ARRAY:
            metadata[key] = cursor.array(label)
        else:
            metadata[key] = cursor.scalar(kind, label)
    return metadata


def _read_tensor_info(cursor: _Cursor) -> _TensorInfo:
    name = cursor.string("a tensor name", MAX_TENSOR_NAME_BYTES)
    label = f"tensor {name[:80]!r}"
    rank = _bounded(cursor.u32(label), MAX_DIMENSIONS, f"dimensions of {label}")
    dimensions = struct.unpack(f"<{rank}Q", cursor.take(8 * rank, label))
    if not all(0 < size < 1 << 48 for size in dimensions):
        raise ModelFileError(f"{label} has dimensions {dimensions}; each is from 1 to 2^48")
    kind, offset = cursor.u32(label), cursor.u64(label)
    if kind not in _TENSOR_TYPES:
        raise ModelFileError(
            f"{label} has GGML type {kind}, which is not supported: use a file in F32, F16, BF16, Q8_0, "
            "Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K"
        )
    return _TensorInfo(name, tuple(reversed(dimensions)), ENCODINGS[_TENSOR_TYPES[kind]], offset)


def _place_tensors(
    view: memoryview, infos: list[_TensorInfo], header_end: int, alignment: int
) -> dict[str, StoredTensor]:
    base = -(-header_end // alignment) * alignment
    available = max(len(view) - base, 0)
    tensors: dict[str, StoredTensor] = {}
    for info in infos:
        size = info.encoding.num_bytes(info.shape, info.name[:80])
        if info.name in tensors:
            raise ModelFileError(f"tensor {info.name[:80]!r} appears twice")
        if info.offset % alignment or info.offset > available or size > available - info.offset:
            raise ModelFileError(
                f"tensor {info.name[:80]!r} takes {size} bytes at offset {info.offset} of {available} bytes "
                f"of data, aligned to {alignment}: it does not lie in the file"
            )
        start = base + info.offset
        tensors[info.name] = StoredTensor(info.name, info.shape, info.encoding, view[start : start + size])
    return tensors


def _alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ModelFileError(
            f"metadata 'general.alignment' is {str(value)[:40]}; it is a power of two up to {MAX_ALIGNMENT}"
        )
    return value


def _scalar_code(kind: int, what: str) -> str:
    if kind not in _SCALARS:
        raise ModelFileError(f"{what} has value type {kind}, which does not exist or cannot stand there")
    return _SCALARS[kind]


def _bounded(value: int, limit: int, what: str) -> int:
    if value > limit:
        raise ModelFileError(f"it claims {value} {what}; the limit is {limit}")
    return value
