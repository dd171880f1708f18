"""Damaged and malicious files: only ModelFileError, within a second, in bounded memory (FAULTS.md, F6)."""

import json
import re
import struct
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomesh.errors import ModelFileError
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.gguf_header import MAX_ARRAY_ELEMENTS, MAX_KEYS, MAX_TENSORS
from atomesh.testing.tiny_model import tiny_config, write_tiny_gguf, write_tiny_model

MAX_SECONDS = 1.0
FUZZ = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


PROBE = """
import resource, sys, time
from pathlib import Path
from atomesh.errors import ModelFileError
from atomesh.model_files.checkpoint import open_checkpoint

def refusal():
    started = time.process_time()
    try:
        open_checkpoint(Path(sys.argv[1])).tensors
    except ModelFileError as error:
        return time.process_time() - started, str(error)

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds, message = min(refusal() for _ in range(2))  # the lesser: other processes share the caches
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, message)
"""


def _check_refused(path, complaint, max_megabytes):
    """In a process of its own: its time and its peak of memory, mapped pages included, are its own."""
    output = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=True
    )
    seconds, kilobytes, message = output.stdout.split(maxsplit=2)
    assert re.search(complaint, message)
    assert float(seconds) < MAX_SECONDS
    assert int(kilobytes) < max_megabytes * 1024


def _open(path):
    """Opens all that a checkpoint opens; whatever is wrong must come as ModelFileError."""
    with suppress(ModelFileError):
        checkpoint = open_checkpoint(path)
        for tensor in checkpoint.tensors.values():
            assert len(tensor.data) == tensor.encoding.num_bytes(tensor.shape, tensor.name)


@st.composite
def _damage(draw, size):
    """Which bytes to set, and where to cut; most of it in the first bytes, where the counts are."""
    near = st.integers(0, min(size, 400) - 1)
    anywhere = st.integers(0, size - 1)
    edits = draw(st.lists(st.tuples(near | anywhere, st.integers(0, 255) | st.just(255)), max_size=6))
    cut = draw(st.none() | near | anywhere)
    return edits, cut


def _damaged(content, damage):
    edits, cut = damage
    changed = bytearray(content)
    for position, value in edits:
        changed[position] = value
    return bytes(changed[:cut])


@pytest.fixture(scope="module")
def gguf_content(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    return write_tiny_gguf(folder / "tiny.gguf", "gemma3", num_hidden_layers=1, layer_types=None).read_bytes()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("hf"), num_hidden_layers=1)


@FUZZ
@given(data=st.data())
def test_damaged_gguf_files(tmp_path, gguf_content, data):
    path = tmp_path / "x.gguf"
    path.write_bytes(_damaged(gguf_content, data.draw(_damage(len(gguf_content)))))
    _open(path)


@FUZZ
@given(content=st.binary(max_size=200))
def test_gguf_files_of_noise(tmp_path, content):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + content)
    _open(path)


@FUZZ
@given(data=st.data())
def test_damaged_safetensors_files(directory, data):
    path = directory / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(_damaged(content, data.draw(_damage(len(content)))))
    try:
        _open(directory)
    finally:
        path.write_bytes(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gemma3"]), data=st.data())
def test_configs_with_wild_values(directory, family, data):
    keys = [
        *tiny_config(family),
        "rope_scaling",
        "rope_parameters",
        "layer_types",
        "text_config",
        "sliding_window",
    ]
    wild = data.draw(st.dictionaries(st.sampled_from(keys), JSON, max_size=4))
    path = directory / "config.json"
    content = path.read_bytes()
    path.write_text(json.dumps(tiny_config(family, **wild)))
    try:
        _open(directory)
    finally:
        path.write_bytes(content)


def _header(num_tensors, num_pairs):
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_pairs)


def _array_pair(kind, count, data):
    return struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, kind, count) + data


GIANT = 60 << 20


def _pairs(count):
    return b"".join(struct.pack("<Q", 5) + b"%05d" % i + struct.pack("<IB", 0, 1) for i in range(count))


def _tensors(count):
    return b"".join(
        struct.pack("<Q", 5) + b"%05d" % i + struct.pack("<IQIQ", 1, 1, 0, 0) for i in range(count)
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (_header(0, 1) + _array_pair(8, GIANT // 8, bytes(GIANT)), "more array elements"),
        (_header(0, 1) + _array_pair(0, GIANT, bytes(GIANT)), "more array elements"),
        (_header(0, 1) + _array_pair(8, MAX_ARRAY_ELEMENTS, bytes(8 * MAX_ARRAY_ELEMENTS)), "is missing"),
        (_header(0, 1) + struct.pack("<QcIQ", 1, b"k", 8, GIANT) + bytes(GIANT), "is missing"),
        (_header(0, MAX_KEYS) + _pairs(MAX_KEYS), "is missing"),
        (_header(MAX_TENSORS, 0) + _tensors(MAX_TENSORS) + bytes(64), "is missing"),
    ],
    ids=["strings", "bytes", "allowed strings", "one string", "keys", "tensors"],
)
def test_giant_gguf_headers(tmp_path, content, complaint):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    _check_refused(path, complaint, 256)


def test_giant_safetensors_headers(tmp_path):
    write_tiny_model(tmp_path)
    entries = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}
    text = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    _check_refused(tmp_path, "lists 100001 tensors, more than 100000", 256)


def test_a_file_of_a_terabyte_that_holds_nothing(tmp_path):
    path = tmp_path / "x.gguf"
    with path.open("wb") as file:
        file.write(_header(0, 0))
        file.truncate(1 << 40)  # sparse
    _check_refused(path, r"general\.architecture is missing", 4)
