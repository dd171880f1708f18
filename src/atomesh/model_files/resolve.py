"""What the user calls a model → its files on this machine."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.model_files.catalog import CATALOG, DEFAULT_MODEL, own_model
from atomesh.model_files.fetch import Progress, fetch, ignore_progress
from atomesh.model_files.hf_checkpoint import directory_name
from atomesh.model_files.hub import fetch_snapshot

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`name` is what /v1/models shows unless the operator gives another."""

    name: str
    path: Path


def resolve_model(text: str | None, home: Path, progress: Progress = ignore_progress) -> LocalModel:
    """`text` is a directory, a GGUF file, a name of `atomesh models` or a hub id; None is the default model.

    Fetches what is not here. Raises ConfigurationError, with the remedy, if it cannot be had.
    """
    wanted = DEFAULT_MODEL if text is None else text
    # os.path answers for any text; pathlib raises for a name too long or an unknown ~user.
    path = Path(os.path.expanduser(wanted))
    if wanted and os.path.exists(path):
        return LocalModel(directory_name(path) if path.is_dir() else path.stem, path)
    entry = CATALOG.get(wanted.lower())
    if entry is not None:
        return LocalModel(entry.name, fetch(entry, home, progress))
    own = own_model(wanted, home)
    if own is not None:
        return LocalModel(wanted, own)
    if _HUB_ID.fullmatch(wanted):
        return LocalModel(wanted, fetch_snapshot(wanted))
    raise ConfigurationError(
        f"there is no model {wanted[:200]!r}: name a directory, a .gguf file, a hub id such as "
        f"HuggingFaceTB/SmolLM2-135M-Instruct, or one of {', '.join(CATALOG)}"
    )
