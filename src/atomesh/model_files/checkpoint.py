"""A model on disk, whatever its format."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from atomesh.errors import ModelFileError
from atomesh.model_files.config import ModelConfig
from atomesh.model_files.gguf_checkpoint import GgufCheckpoint
from atomesh.model_files.hf_checkpoint import HuggingFaceCheckpoint
from atomesh.model_files.mapped_file import plain_file_size
from atomesh.model_files.stored_tensor import StoredTensor


class Checkpoint(Protocol):
    """What a model's files say, parsed and checked: sizes bounded, ranges in their files, nothing executed.

    `name` is fit for people (the directory's or file's, or the hub repository's). `metadata` are the
    key/values of a GGUF file, arrays as lists; empty for a directory. `tensors` are views of mapped files
    under the names they have there; `format` says whose names those are.
    """

    @property
    def format(self) -> Literal["huggingface", "gguf"]: ...
    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def architecture(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, object]: ...
    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def read_json(self, name: str) -> dict[str, object] | None:
        """A JSON object beside the weights; None if there is none, or for GGUF. Raises ModelFileError."""

    def find(self, name: str) -> Path | None:
        """A plain file beside the weights, within its size limit; None if there is none, or for GGUF."""


def open_checkpoint(path: Path) -> Checkpoint:
    """A Hugging Face directory or a .gguf file. Raises ModelFileError: field, value, limit, remedy."""
    if os.path.isdir(path):
        return HuggingFaceCheckpoint(path)
    if plain_file_size(path) is None:
        raise ModelFileError(f"{path} does not exist: name a model directory or a .gguf file")
    if path.suffix.lower() != ".gguf":
        raise ModelFileError(
            f"{path.name} is neither a directory nor a .gguf file: for safetensors, name their directory"
        )
    return GgufCheckpoint(path)
