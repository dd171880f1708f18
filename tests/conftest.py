"""What holds for every test: no code is made from data; long suites run a sample unless --soak is given."""

import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis
import pytest

import atomesh
from atomesh.model_files.catalog import CATALOG, DEFAULT_MODEL
from atomesh.model_files.fetch import fetch
from atomesh.testing.served_process import ServedProcess, served_process, wait_ready

SOURCE = str(Path(atomesh.__file__).parent)
WATCHED = {"pickle.find_class", "marshal.loads", "marshal.load", "compile", "exec"}
# Whoever makes code for a living may: the import system, the record generators, and the template sandbox.
TRUSTED = (
    "importlib",
    "dataclasses.py",
    "msgspec",
    "attr",
    "jinja2",
    "enum.py",
    "collections",
    "typing.py",
    "traceback.py",
)
violations: list[str] = []

hypothesis.settings.register_profile("sample", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("sample")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the full counts of the long suites")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--soak"):
        hypothesis.settings.load_profile("soak")
    sys.addaudithook(watch)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--soak"):
        skip = pytest.mark.skip(reason="full counts run with make soak")
        for item in items:
            if "soak" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether the full counts are asked for; a long suite chooses its sample by it."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture(scope="session")
def default_home() -> Path:
    """Where the default model is kept between runs, as a user keeps it."""
    return Path(os.environ.get("ATOMESH_HOME", "~/.cache/atomesh")).expanduser()


@pytest.fixture(scope="session")
def default_model(default_home: Path) -> Path:
    """The default model's GGUF file, fetched if it is not here yet."""
    return fetch(CATALOG[DEFAULT_MODEL], default_home)


@pytest.fixture(scope="session")
def default_server(default_model: Path, default_home: Path) -> Iterator[ServedProcess]:
    """`atomesh serve --unified 1` with the default model in float32, ready; each test leaves it idle."""
    with serve_default(default_home, "--unified=1") as server:
        yield server


@pytest.fixture(scope="session")
def default_pair(default_model: Path, default_home: Path) -> Iterator[ServedProcess]:
    """The same as one prefill and one decode worker, which is what `atomesh serve` runs by itself."""
    with serve_default(default_home) as server:
        yield server


@contextmanager
def serve_default(home: Path, *pools: str) -> Iterator[ServedProcess]:
    with served_process(DEFAULT_MODEL, home, "--max-model-len=2048", *pools, kv_memory="1GiB") as server:
        wait_ready(server)
        yield server


@pytest.fixture(autouse=True)
def no_code_from_data() -> Iterator[None]:
    """Fails the test in which our code, not a library that may, unpickled, compiled or executed something."""
    violations.clear()
    yield
    assert violations == []


def watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in WATCHED:
        chain = callers(sys._getframe(1))
        if chain is not None and (event == "pickle.find_class" or not any(map(is_trusted, chain))):
            violations.append(f"{event} {arguments[:1]!r:.200} from {chain[-1]}")


def callers(frame: types.FrameType | None) -> list[str] | None:
    """Files on the stack from the event down to the nearest file of ours; None if we are not on it."""
    files = []
    while frame is not None:
        name = frame.f_code.co_filename
        files.append(name)
        if name.startswith(SOURCE):
            return files
        frame = frame.f_back
    return None


def is_trusted(file: str) -> bool:
    return any(name in file for name in TRUSTED)
