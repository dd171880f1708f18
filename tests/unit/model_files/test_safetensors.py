import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from atomesh.errors import ModelFileError
from atomesh.model_files.safetensors import read_safetensors
from atomesh.testing.safetensors_file import write_safetensors


def _file(tmp_path, header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def _entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_files_of_the_safetensors_package_are_read(tmp_path):
    values = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array([7, 8], np.int64)}
    save_file(values, tmp_path / "x.safetensors", metadata={"format": "pt"})

    tensors = read_safetensors(tmp_path / "x.safetensors")

    assert {name: (tensor.shape, tensor.encoding.name) for name, tensor in tensors.items()} == {
        "a": ((3, 4), "F32"),
        "b": ((2,), "I64"),
    }
    assert bytes(tensors["a"].data) == values["a"].tobytes()
    assert bytes(tensors["b"].data) == values["b"].tobytes()


def test_our_own_files_are_read_by_the_safetensors_package(tmp_path):
    values = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(1, np.float32)}
    write_safetensors(tmp_path / "x.safetensors", values)

    read = load_file(tmp_path / "x.safetensors")

    assert read.keys() == values.keys()
    assert all(np.array_equal(read[name], values[name]) for name in values)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (_entry(offsets=(0, 12)), r"lies at \(0, 12\), outside the 8 bytes"),
        (_entry(offsets=(8, 0)), "outside the 8 bytes"),
        (_entry(offsets=(0, 4)), r"of shape \(2,\) and dtype F32 needs 8 bytes, the file gives it 4"),
        (_entry(offsets=(0,)), r"lies at \(0,\)"),
        (_entry(offsets=(-8, 0)), "data_offsets is not a list"),
        (_entry(offsets=(0, 1 << 60)), "data_offsets is not a list"),
        (_entry(shape=(1 << 40, 1 << 40)), "needs 4835703278458516698824704 bytes"),
        (_entry(shape=(1 << 60,)), "shape is not a list"),
        (_entry(shape=(1,) * 9), "shape is not a list of at most 8"),
        (_entry(shape=(2.0,)), "shape is not a list"),
        (_entry(shape=(True, 2)), "shape is not a list"),
        (_entry(dtype="Q4_0"), "dtype 'Q4_0', which is not supported"),
        (_entry(dtype="F4"), "dtype 'F4', which is not supported"),
        (_entry(dtype=["F32"]), "which is not supported"),
        ({}, "dtype 'None'"),
        ([], "is not described by an object"),
        (None, "is not described by an object"),
    ],
)
def test_an_entry_that_lies_is_refused(tmp_path, entry, complaint):
    with pytest.raises(ModelFileError, match=complaint) as refusal:
        read_safetensors(_file(tmp_path, {"w": entry}, bytes(8)))
    assert "model.safetensors: " in refusal.value.message
    assert "'w'" in refusal.value.message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"1234567", "at least 8 bytes, this one 7"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "header claims 9223372036854775808 bytes"),
        ((3).to_bytes(8, "little") + b"{}", "header claims 3 bytes; the file has 10"),
        ((33 << 20).to_bytes(8, "little") + bytes(64), "header claims 34603008 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
        ((4).to_bytes(8, "little") + b'"\xff\xff"', "not JSON"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "not JSON"),
        ((7).to_bytes(8, "little") + b'{"w":1}', "not described"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, content, complaint):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint):
        read_safetensors(path)


def test_messages_do_not_repeat_a_giant_name(tmp_path):
    with pytest.raises(ModelFileError) as refusal:
        read_safetensors(_file(tmp_path, {"x" * 1_000_000: _entry(dtype="y" * 1_000_000)}))
    assert len(refusal.value.message) < 300
