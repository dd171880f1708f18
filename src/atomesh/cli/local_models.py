"""The files of a model that another engine serves, if they are on this machine: nothing is fetched."""

import os
from pathlib import Path

from atomesh.mesh.backends.context import LocalModel
from atomesh.model_files.catalog import CATALOG, fetched, fetched_path, own_model
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.model_files.hf_checkpoint import directory_name


def find_local_model(name: str, home: Path) -> LocalModel | None:
    """`name` is a directory, a GGUF file, or a name of `atomesh models`. Raises ModelFileError."""
    path = _find_path(name, home)
    if path is None:
        return None
    checkpoint = open_checkpoint(path)
    return LocalModel(
        name=directory_name(path) if path.is_dir() else path.stem,
        path=str(path.resolve()),
        architecture=checkpoint.architecture,
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=tuple(checkpoint.config.eos_token_ids),
    )


def _find_path(name: str, home: Path) -> Path | None:
    path = Path(os.path.expanduser(name))
    if name and (os.path.isdir(path) or (path.suffix == ".gguf" and os.path.isfile(path))):
        return path
    entry = CATALOG.get(name.lower())
    if entry is not None:
        return fetched_path(entry, home) if fetched(entry, home) else None
    return own_model(name, home)
