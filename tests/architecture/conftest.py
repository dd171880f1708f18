"""The sources as the tests of this directory read them, and the sizes, told at the end of every run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import atomesh

ROOT = Path(atomesh.__file__).parent
SIZES = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Source:
    """One file of the package; `module` is its dotted name, `path` is relative to src/atomesh."""

    module: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


def read_sources() -> Iterator[Source]:
    for file in sorted(ROOT.rglob("*.py")):
        path = file.relative_to(ROOT)
        module = ".".join(("atomesh", *path.with_suffix("").parts)).removesuffix(".__init__")
        yield Source(module, path.as_posix(), file.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    return list(read_sources())


@pytest.fixture
def size_report(request: pytest.FixtureRequest) -> list[str]:
    """Lines to be shown at the end of the run, whether the tests pass or not."""
    return request.config.stash.setdefault(SIZES, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(SIZES, []):
        terminalreporter.write_line(line)
