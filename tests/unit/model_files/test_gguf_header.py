import struct

import gguf
import pytest

from atomesh.errors import ModelFileError
from atomesh.model_files import gguf_header
from atomesh.model_files.gguf_header import parse_gguf
from atomesh.testing.tiny_model import write_tiny_gguf


def _string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key, kind, value):
    return _string(key) + struct.pack("<I", kind) + value


def _array(kind, count, data):
    return struct.pack("<IQ", kind, count) + data


def _tensor(name="w", dimensions=(32,), kind=0, offset=0):
    return (
        _string(name)
        + struct.pack("<I", len(dimensions))
        + struct.pack(f"<{len(dimensions)}Q", *dimensions)
        + struct.pack("<IQ", kind, offset)
    )


def _file(pairs=(), tensors=(), data=bytes(256), *, version=3, num_pairs=None, num_tensors=None):
    header = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    header += b"".join(pairs) + b"".join(tensors)
    return memoryview(header + bytes(-len(header) % 32) + data)


@pytest.mark.parametrize("quantisation", ["F32", "BF16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("tokenizer", ["bytes", "sentencepiece"])
def test_metadata_and_tensors_are_those_that_the_gguf_package_reads(tmp_path, quantisation, tokenizer):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", "gemma3", quantisation=quantisation, tokenizer=tokenizer)

    header = parse_gguf(memoryview(path.read_bytes()))

    reader = gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata == expected
    assert header.tensors.keys() == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert ours.encoding.name == tensor.tensor_type.name
        assert bytes(ours.data) == tensor.data.tobytes()


def test_every_scalar_and_array_kind_is_read():
    kinds = {0: ("B", 200), 1: ("b", -3), 2: ("H", 65535), 3: ("h", -9), 4: ("I", 1 << 31), 5: ("i", -5)}
    kinds |= {6: ("f", 0.5), 10: ("Q", 1 << 63), 11: ("q", -(1 << 62)), 12: ("d", 0.1)}
    pairs = [_pair(f"s{kind}", kind, struct.pack("<" + code, value)) for kind, (code, value) in kinds.items()]
    pairs += [
        _pair(f"a{kind}", 9, _array(kind, 2, struct.pack("<2" + code, value, value)))
        for kind, (code, value) in kinds.items()
    ]
    pairs += [_pair("true", 7, b"\x01"), _pair("flags", 9, _array(7, 2, b"\x00\x01"))]
    pairs += [
        _pair("text", 8, _string("héllo")),
        _pair("texts", 9, _array(8, 2, _string("") + _string("▁a"))),
    ]

    metadata = parse_gguf(_file(pairs)).metadata

    expected = {f"s{kind}": value for kind, (_, value) in kinds.items()}
    expected |= {f"a{kind}": [value, value] for kind, (_, value) in kinds.items()}
    expected |= {"true": True, "flags": [False, True], "text": "héllo", "texts": ["", "▁a"]}
    assert metadata == expected


def test_the_alignment_that_the_file_declares_is_used():
    pairs = [_pair("general.alignment", 4, struct.pack("<I", 64))]
    view = _file(pairs, [_tensor(dimensions=(2,), offset=64)], data=bytes(32 + 64) + b"\x01" * 8)
    end_of_header = 4 + 20 + len(pairs[0]) + len(_tensor(dimensions=(2,)))
    assert end_of_header <= 128

    tensor = parse_gguf(view).tensors["w"]

    assert tensor.shape == (2,)
    assert len(tensor.data) == 8


@pytest.mark.parametrize(
    ("view", "complaint"),
    [
        (memoryview(b"GGU"), "the magic at byte 0 takes 4 bytes, but the header ends at 3"),
        (memoryview(b"GGML" + bytes(20)), "does not begin with 'GGUF'"),
        (_file(version=1), "version 1 is not supported"),
        (_file(version=3 << 24), r"version 50331648 \(a big-endian file\)"),
        (_file(num_pairs=1 << 62), "claims 4611686018427387904 metadata keys; the limit is 16384"),
        (_file(num_tensors=1 << 40), "claims 1099511627776 tensors; the limit is 16384"),
        (_file(num_pairs=40), "metadata"),
        (_file([struct.pack("<Q", 1 << 60)]), "bytes in a metadata key; the limit is 65535"),
        (_file([_pair("k", 8, struct.pack("<Q", 1 << 60))]), "bytes in metadata 'k'"),
        (_file([_pair("k", 8, struct.pack("<Q", 5000))]), "takes 5000 bytes, but the header ends"),
        (_file([_pair("k", 8, _string(b"\xff\xfe"))]), "metadata 'k' is not UTF-8"),
        (_file([_pair(b"\xff", 4, bytes(4))]), "a metadata key is not UTF-8"),
        (_file([_pair("k", 13, bytes(8))]), "value type 13, which does not exist"),
        (
            _file([_pair("k", 9, _array(9, 1, bytes(32)))]),
            "value type 9, which does not exist or cannot stand there",
        ),
        (_file([_pair("k", 9, _array(4, 1 << 60, b""))]), "more array elements"),
        (_file([_pair("k", 9, _array(4, 1 << 20, b""))]), "takes 4194304 bytes"),
        (_file([_pair("k", 9, _array(8, 1 << 20, b""))], data=b""), "does not have the 1048576 elements"),
        (_file([_pair("k", 9, _array(8, 1, struct.pack("<Q", 1 << 63)))]), "the header ends at"),
        (_file([_pair("k", 9, _array(8, 1, _string(b"\xc3")))]), "an element of metadata 'k' is not UTF-8"),
        (_file([_pair("k", 0, b"1"), _pair("k", 0, b"2")]), "metadata 'k' appears twice"),
        (_file([_pair("general.alignment", 4, struct.pack("<I", 48))]), "'general.alignment' is 48"),
        (_file([_pair("general.alignment", 4, struct.pack("<I", 0))]), "'general.alignment' is 0"),
        (_file([_pair("general.alignment", 8, _string("32"))]), "'general.alignment' is 32"),
        (_file(tensors=[_tensor(), _tensor()]), "tensor 'w' appears twice"),
        (_file(tensors=[_tensor("n" * 300)]), "300 bytes in a tensor name; the limit is 256"),
        (_file(tensors=[_tensor(dimensions=(1,) * 5)]), "5 dimensions of tensor 'w'; the limit is 4"),
        (_file(tensors=[_tensor(dimensions=(0,))]), r"has dimensions \(0,\)"),
        (_file(tensors=[_tensor(dimensions=(1 << 47,) * 4)]), "it does not lie in the file"),
        (_file(tensors=[_tensor(dimensions=(65,))]), "takes 260 bytes at offset 0 of 256"),
        (_file(tensors=[_tensor(offset=(1 << 64) - 32)]), "it does not lie in the file"),
        (_file(tensors=[_tensor(offset=4)]), "aligned to 32"),
        (_file(tensors=[_tensor(kind=2, dimensions=(33,))]), "rows of 33 elements, not a multiple of the 32"),
        (_file(tensors=[_tensor(kind=16)]), "GGML type 16, which is not supported: use a file in F32"),
        (_file(tensors=[_tensor(kind=4_000_000_000)]), "GGML type 4000000000"),
    ],
)
def test_a_file_that_lies_is_refused_by_name(view, complaint):
    with pytest.raises(ModelFileError, match=complaint):
        parse_gguf(view)


def test_the_elements_of_all_arrays_together_are_bounded(monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_ARRAY_ELEMENTS", 10)
    pairs = [_pair(key, 9, _array(0, 6, bytes(6))) for key in ("a", "b")]

    with pytest.raises(
        ModelFileError, match=r"claims 6 more array elements \(metadata 'b'\); the limit is 4"
    ):
        parse_gguf(_file(pairs))


def test_the_header_is_bounded(monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", 1000)

    with pytest.raises(ModelFileError, match="takes 2000 bytes, but the header ends at 1000"):
        parse_gguf(_file([_pair("k", 8, _string("x" * 2000))]))
