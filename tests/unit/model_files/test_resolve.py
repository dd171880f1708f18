import importlib
from types import SimpleNamespace

import pytest

from atomesh.errors import ConfigurationError
from atomesh.model_files import hub
from atomesh.model_files.catalog import CATALOG, DEFAULT_MODEL, fetched_path
from atomesh.model_files.resolve import LocalModel, resolve_model
from atomesh.testing.tiny_model import write_tiny_gguf, write_tiny_model


@pytest.fixture
def default_model(tmp_path):
    """A sparse file of the default model's name and size: as good as fetched."""
    path = fetched_path(CATALOG[DEFAULT_MODEL], tmp_path)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(CATALOG[DEFAULT_MODEL].file_bytes)
    return path


@pytest.mark.parametrize("text", [None, "smollm2-135m-instruct", "SmolLM2-135M-Instruct"])
def test_the_default_model_by_its_name_or_none(tmp_path, default_model, text):
    assert resolve_model(text, tmp_path) == LocalModel("smollm2-135m-instruct", default_model)


def test_paths_are_taken_as_they_are(tmp_path):
    directory = write_tiny_model(tmp_path / "a" / "tiny")
    file = write_tiny_gguf(tmp_path / "b" / "small.gguf")

    assert resolve_model(str(directory), tmp_path / "home") == LocalModel("tiny", directory)
    assert resolve_model(str(file), tmp_path / "home") == LocalModel("small", file)


def test_a_users_own_model_is_found_by_name(tmp_path):
    directory = write_tiny_model(tmp_path / "models" / "mine")
    file = write_tiny_gguf(tmp_path / "models" / "yours.gguf")

    assert resolve_model("mine", tmp_path) == LocalModel("mine", directory)
    assert resolve_model("yours", tmp_path) == LocalModel("yours", file)


@pytest.mark.parametrize(
    "text",
    ["nothing", "", "../x/y/z", "a/b/c", "x" * 5000, "/does/not/exist.gguf", "a\0b", "~nobody-at-all/x/y"],
)
def test_what_is_nothing_says_what_would_be_something(tmp_path, text):
    with pytest.raises(
        ConfigurationError, match=r"name a directory, a .gguf file, a hub id.*smollm2-135m-instruct"
    ):
        resolve_model(text, tmp_path)


class Hub:
    """A hub that has one repository; its cache holds it once it was downloaded."""

    def __init__(self, directory, cached=None):
        self.directory = directory
        self.cached = cached
        self.downloads = 0

    def snapshot_download(self, repository, allow_patterns, local_files_only=False):
        assert "*.py" not in allow_patterns
        assert not any(pattern.endswith((".bin", ".pt")) for pattern in allow_patterns)
        if local_files_only:
            if self.cached is None:
                raise FileNotFoundError("not in the cache")
            return str(self.cached)
        self.downloads += 1
        if repository != "org/tiny":
            raise OSError("404: Repository Not Found\nmore lines")
        self.cached = self.directory
        return str(self.directory)


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    fake = Hub(write_tiny_model(tmp_path / "hub"))
    modules = SimpleNamespace(import_module=lambda name: {"huggingface_hub": fake}[name])
    monkeypatch.setattr(hub, "importlib", modules)
    return fake


def test_a_hub_id_is_fetched_once(tmp_path, fake_hub):
    first = resolve_model("org/tiny", tmp_path)
    second = resolve_model("org/tiny", tmp_path)

    assert first == second == LocalModel("org/tiny", fake_hub.directory)
    assert fake_hub.downloads == 1


def test_a_half_cached_repository_is_completed(tmp_path, fake_hub):
    half = write_tiny_model(tmp_path / "half")
    (half / "model.safetensors").unlink()
    fake_hub.cached = half

    assert resolve_model("org/tiny", tmp_path).path == fake_hub.directory
    assert fake_hub.downloads == 1


def test_a_repository_that_is_not_there_is_named(tmp_path, fake_hub):
    with pytest.raises(
        ConfigurationError, match=r"org/none could not be fetched .*\(404: Repository Not Found\)"
    ):
        resolve_model("org/none", tmp_path)


def test_without_the_hubs_package_the_remedy_is_named(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(hub, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(ConfigurationError, match="pip install huggingface_hub"):
        resolve_model("org/tiny", tmp_path)


def test_the_hubs_package_has_the_function_that_we_call():
    function = importlib.import_module("huggingface_hub").snapshot_download
    assert callable(function)
