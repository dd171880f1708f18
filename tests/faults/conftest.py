"""The bench: whole servers, a process each worker, with a tiny model in float32.

What asks for `bench` holds for one unified worker and for prefill and decode apart, over every transport;
what asks for `apart` needs the two; the test kills parts of what is `doomed`; `pairs` has two workers a role.
After every test each server is idle, its books are right, and it answers.
A sample of the rows runs over TCP too; make soak runs all of them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atomesh.testing.pd_bench import (
    ONE_AND_ONE,
    ONE_AND_ONE_TCP,
    TWO_AND_TWO,
    UNIFIED,
    PDBench,
    Shape,
    pd_bench,
    running,
)
from atomesh.testing.tiny_model import write_tiny_model

APART = [ONE_AND_ONE, ONE_AND_ONE_TCP]
DOOMED = [ONE_AND_ONE, TWO_AND_TWO, ONE_AND_ONE_TCP]
PAIRS = [TWO_AND_TWO]
SHAPES = [UNIFIED, *APART]
SAMPLED_OVER_TCP = ("test_a1", "test_a3", "test_a6")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        asked = {"apart": APART, "doomed": DOOMED, "pairs": PAIRS}
        shapes = next((asked[name] for name in metafunc.fixturenames if name in asked), SHAPES)
        names = [shape.name for shape in shapes]
        metafunc.parametrize("server", shapes, ids=names, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ONE_AND_ONE_TCP.name in item.name and not item.name.startswith(SAMPLED_OVER_TCP):
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    """U: what every answer is compared with."""
    with pd_bench(model, tmp_path_factory.mktemp("home"), UNIFIED) as bench:
        yield bench


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PDBench]:
    shape: Shape = request.param
    if shape == UNIFIED:
        yield request.getfixturevalue("reference")
        return
    with pd_bench(model, tmp_path_factory.mktemp("home"), shape) as bench:
        yield bench


@pytest.fixture
def bench(server: PDBench) -> PDBench:
    return server


@pytest.fixture
def apart(server: PDBench) -> PDBench:
    return server


@pytest.fixture
def doomed(server: PDBench) -> PDBench:
    return server


@pytest.fixture
def pairs(server: PDBench) -> PDBench:
    """Two workers of each role."""
    return server


@pytest.fixture(autouse=True)
def whole_afterwards() -> Iterator[None]:
    """After every test, whatever server it used, every one that runs is held to what must be true then."""
    yield
    for bench in tuple(running):
        bench.check()
