import json
import os

import numpy as np
import pytest

from atomesh.errors import ModelFileError
from atomesh.model_files import hf_checkpoint
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.safetensors_file import write_safetensors
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model


@pytest.fixture
def directory(tmp_path):
    return write_tiny_model(tmp_path / "tiny-llama")


def _index(directory, weight_map):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_a_directory_is_opened(directory):
    checkpoint = open_checkpoint(directory)

    assert (checkpoint.format, checkpoint.name, checkpoint.architecture) == (
        "huggingface",
        "tiny-llama",
        "llama",
    )
    assert checkpoint.metadata == {}
    assert checkpoint.path == directory
    assert checkpoint.tensors["model.norm.weight"].shape == (64,)
    assert checkpoint.read_json("tokenizer_config.json")["eos_token"] == "<|im_end|>"
    assert checkpoint.read_json("generation_config.json") is None
    assert checkpoint.find("tokenizer.json") == directory / "tokenizer.json"
    assert checkpoint.find("tokenizer.model") is None


def test_a_gguf_file_has_no_files_beside_it(tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf"))

    assert checkpoint.find("tokenizer.json") is None
    assert checkpoint.read_json("config.json") is None
    assert checkpoint.metadata["tokenizer.ggml.model"] == "gpt2"


def test_generation_config_decides_where_a_text_ends(directory):
    (directory / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert open_checkpoint(directory).config.eos_token_ids == (2, 0)


def test_a_snapshot_of_the_hub_is_named_after_its_repository(tmp_path):
    snapshot = tmp_path / "models--org--my-model" / "snapshots" / "0123abc"
    blobs = write_tiny_model(tmp_path / "blobs")
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(file)

    checkpoint = open_checkpoint(snapshot)

    assert checkpoint.name == "org/my-model"
    assert "lm_head.weight" in checkpoint.tensors


def test_shards_are_joined(directory):
    whole = open_checkpoint(directory).tensors
    values = {name: np.frombuffer(tensor.data, "<f4").reshape(tensor.shape) for name, tensor in whole.items()}
    names = sorted(values)
    write_safetensors(directory / "a.safetensors", {name: values[name] for name in names[:5]})
    write_safetensors(directory / "b.safetensors", {name: values[name] for name in names[5:]})
    _index(directory, {name: "a.safetensors" if name in names[:5] else "b.safetensors" for name in names})
    (directory / "model.safetensors").unlink()

    assert open_checkpoint(directory).tensors.keys() == values.keys()

    (directory / "model.safetensors.index.json").unlink()
    assert open_checkpoint(directory).tensors.keys() == values.keys()

    (directory / "b.safetensors").unlink()
    _index(directory, {"x": "a.safetensors", "y": "b.safetensors"})
    with pytest.raises(ModelFileError, match=r"'b.safetensors' is missing"):
        _ = open_checkpoint(directory).tensors


@pytest.mark.parametrize(
    ("weight_map", "complaint"),
    [
        ({"w": "../../etc/x.safetensors"}, "is not the name of a file in the model's directory"),
        ({"w": "/etc/x.safetensors"}, "is not the name of a file in the model's directory"),
        ({"w": "pytorch_model.bin"}, r"does not name from 1 to 4096 \*.safetensors files"),
        ({"w": 3}, "does not name from 1 to 4096"),
        ({}, "weight_map is not an object"),
        (["a"], "weight_map is not an object"),
        ({str(i): f"{i}.safetensors" for i in range(5000)}, "does not name from 1 to 4096"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(directory, weight_map, complaint):
    _index(directory, weight_map)
    with pytest.raises(ModelFileError, match=complaint):
        _ = open_checkpoint(directory).tensors


def test_pickles_and_python_files_are_never_read(directory):
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    (directory / "modeling_tiny.py").write_text("raise SystemExit('executed')")
    config = json.loads((directory / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_tiny.Tiny"}
    (directory / "config.json").write_text(json.dumps(config))

    checkpoint = open_checkpoint(directory)

    with pytest.raises(
        ModelFileError, match=r"has 0 \*.safetensors files.*pickled .bin, .pt\) are never read"
    ):
        _ = checkpoint.tensors


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "sub/file.json", "..", "."])
def test_names_that_leave_the_directory_are_refused(directory, name):
    with pytest.raises(ModelFileError, match=r"not the name of a file|not a plain file"):
        open_checkpoint(directory).find(name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_pipes_are_refused_without_waiting(directory, name):
    (directory / name).unlink()
    os.mkfifo(directory / name)
    with pytest.raises(ModelFileError, match=f"{name} is not a plain file"):
        open_checkpoint(directory).find(name)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("config.json", 1 << 20),
        ("tokenizer.json", 64 << 20),
        ("tokenizer.model", 64 << 20),
        ("chat.json", 16 << 20),
    ],
)
def test_files_beyond_the_size_of_their_kind_are_refused_unread(directory, name, size):
    checkpoint = open_checkpoint(directory)
    with (directory / name).open("wb") as file:
        file.truncate(size + 1)  # sparse: takes no room
    with pytest.raises(ModelFileError, match=f"{name} has {size + 1} bytes, more than the {size}"):
        checkpoint.find(name)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "config.json is not valid JSON"),
        (b"[]", "config.json is not a JSON object"),
        (b'{"a": NaN}', "config.json is not valid JSON"),
        (b'{"a": "\xff"}', "config.json is not valid JSON"),
        (b'{"a":' * 200_000, "config.json is not valid JSON"),
    ],
)
def test_a_broken_config_is_refused(directory, content, complaint):
    (directory / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint):
        open_checkpoint(directory)


def test_what_is_no_model_says_what_would_be_one(tmp_path):
    with pytest.raises(ModelFileError, match=r"has no config.json.*or a .gguf file"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelFileError, match=r"does not exist: name a model directory or a .gguf file"):
        open_checkpoint(tmp_path / "nothing.gguf")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"neither a directory nor a .gguf file"):
        open_checkpoint(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_names_that_no_file_can_have_are_not_found(directory, name):
    assert open_checkpoint(directory).find(name) is None
    with pytest.raises(ModelFileError, match="does not exist"):
        open_checkpoint(directory / name)


def test_too_many_shards_are_refused(directory, monkeypatch):
    monkeypatch.setattr(hf_checkpoint, "MAX_SHARDS", 1)
    (directory / "model.safetensors").rename(directory / "a.safetensors")
    (directory / "b.safetensors").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="has 2"):
        _ = open_checkpoint(directory).tensors
