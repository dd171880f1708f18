"""A GGUF file as a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from atomesh.errors import ModelFileError
from atomesh.model_files.gguf_config import parse_gguf_config
from atomesh.model_files.gguf_header import parse_gguf
from atomesh.model_files.mapped_file import map_file
from atomesh.model_files.stored_tensor import StoredTensor


class GgufCheckpoint:
    """See `Checkpoint`. Everything is parsed and checked at once; tensors stay in the mapped file."""

    format: Literal["gguf"] = "gguf"
    metadata: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        view = map_file(path)
        try:
            header = parse_gguf(view)
            self.config = parse_gguf_config(header)
        except ModelFileError as error:
            raise ModelFileError(f"{path.name}: {error.message}") from error
        self.architecture = str(header.metadata["general.architecture"])
        self.metadata = header.metadata
        self.tensors = header.tensors

    def read_json(self, name: str) -> dict[str, object] | None:
        return None

    def find(self, name: str) -> Path | None:
        return None
