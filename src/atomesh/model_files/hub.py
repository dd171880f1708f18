"""Models from the Hugging Face hub, through the optional huggingface_hub package."""

import importlib
from pathlib import Path
from typing import Any

from atomesh.errors import ConfigurationError, ModelFileError
from atomesh.model_files.hf_checkpoint import HuggingFaceCheckpoint

# No Python files and no pickles: nothing of a model is ever executed.
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def fetch_snapshot(repository: str) -> Path:
    """The repository's files in the hub's cache; touches the network only if some are missing.

    Raises ConfigurationError if the package is not installed or the hub does not give the files.
    """
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigurationError(
            f"{repository} is neither a file nor a directory here, and to fetch it from the Hugging Face hub "
            "the package huggingface_hub is needed: pip install huggingface_hub"
        ) from error
    return _cached(hub, repository) or _download(hub, repository)


def _cached(hub: Any, repository: str) -> Path | None:
    try:
        path = Path(hub.snapshot_download(repository, allow_patterns=_PATTERNS, local_files_only=True))
    except (OSError, ValueError):
        return None
    return path if _complete(path) else None


def _complete(path: Path) -> bool:
    try:
        return bool(HuggingFaceCheckpoint(path).tensors)
    except ModelFileError:
        return False


def _download(hub: Any, repository: str) -> Path:
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=_PATTERNS))
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise ConfigurationError(
            f"{repository} could not be fetched from the Hugging Face hub ({reason}). Check its name, the "
            "network and, for a gated model, your token"
        ) from error
