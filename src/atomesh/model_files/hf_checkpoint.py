"""A Hugging Face directory as a checkpoint: config.json, safetensors, tokenizer files."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import orjson

from atomesh.errors import ModelFileError
from atomesh.model_files.hf_config import parse_hf_config
from atomesh.model_files.mapped_file import check_size, plain_file_size, read_small_file
from atomesh.model_files.safetensors import read_safetensors
from atomesh.model_files.stored_tensor import StoredTensor

MAX_JSON_BYTES = 16 << 20
MAX_TOKENIZER_BYTES = 64 << 20
MAX_SHARDS = 4096

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SIZE_LIMITS = {
    "config.json": 1 << 20,
    "generation_config.json": 1 << 20,
    "tokenizer.json": MAX_TOKENIZER_BYTES,
    "tokenizer.model": MAX_TOKENIZER_BYTES,
}


class HuggingFaceCheckpoint:
    """See `Checkpoint`. Weights are opened when `tensors` is first asked for: gateways need only the rest."""

    format: Literal["huggingface"] = "huggingface"
    metadata: Mapping[str, object]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = directory_name(path)
        self.metadata = {}
        config = self.read_json("config.json")
        if config is None:
            raise ModelFileError(
                f"{path.name} has no config.json: it is not a Hugging Face model directory. "
                "Name a directory with config.json and *.safetensors, or a .gguf file"
            )
        self.config = parse_hf_config(config, self.read_json("generation_config.json") or {})
        self.architecture = str(config["model_type"])

    def find(self, name: str) -> Path | None:
        """The directory's file of that name, if any; ModelFileError if it is no plain file or too large."""
        if Path(name).name != name:
            raise ModelFileError(f"{name[:80]!r} is not the name of a file in the model's directory")
        path = self.path / name
        size = plain_file_size(path)
        if size is None:
            return None
        if not name.endswith(".safetensors"):
            check_size(path, size, _SIZE_LIMITS.get(name, MAX_JSON_BYTES))
        return path

    def read_json(self, name: str) -> dict[str, object] | None:
        path = self.find(name)
        if path is None:
            return None
        try:
            document = orjson.loads(read_small_file(path, _SIZE_LIMITS.get(name, MAX_JSON_BYTES)))
        except orjson.JSONDecodeError as error:
            raise ModelFileError(
                f"{name} is not valid JSON ({error.msg}). Download the model again"
            ) from error
        if not isinstance(document, dict):
            raise ModelFileError(f"{name} is not a JSON object. Download the model again")
        return document

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All shards' tensors by name. Raises ModelFileError."""
        tensors: dict[str, StoredTensor] = {}
        for shard in self._shards():
            path = self.find(shard)
            if path is None:
                raise ModelFileError(f"{shard[:80]!r} is missing. Download the model again")
            tensors.update(read_safetensors(path))
        return tensors

    def _shards(self) -> list[str]:
        index = self.read_json(_INDEX)
        if index is not None:
            return _indexed_shards(index)
        if self.find(_SINGLE) is not None:
            return [_SINGLE]
        found = sorted(entry.name for entry in _entries(self.path) if entry.name.endswith(".safetensors"))
        if not found or len(found) > MAX_SHARDS:
            raise ModelFileError(
                f"{self.path.name} has {len(found)} *.safetensors files, from 1 to {MAX_SHARDS} expected. "
                "Weights in other formats (pickled .bin, .pt) are never read: convert them to safetensors"
            )
        return found


def _indexed_shards(index: Mapping[str, object]) -> list[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{_INDEX}: weight_map is not an object of tensor names and file names")
    shards = set(weight_map.values()) if all(isinstance(item, str) for item in weight_map.values()) else set()
    if not 0 < len(shards) <= MAX_SHARDS or not all(shard.endswith(".safetensors") for shard in shards):
        raise ModelFileError(f"{_INDEX}: weight_map does not name from 1 to {MAX_SHARDS} *.safetensors files")
    return sorted(shards)


def _entries(path: Path) -> Iterator[Path]:
    try:
        yield from path.iterdir()
    except OSError as error:
        raise ModelFileError(f"{path.name} cannot be listed ({error.strerror})") from error


def directory_name(path: Path) -> str:
    """The directory's name; for a snapshot in the hub's cache, the repository's."""
    resolved = path.absolute()
    repository = resolved.parent.parent.name
    if resolved.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/")
    return resolved.name
