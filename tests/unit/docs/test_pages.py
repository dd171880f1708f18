"""Pages that are named exist, and the map of the tree is the tree's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomesh

SOURCES = Path(atomesh.__file__).parent
ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGE = re.compile(r"(?<![\w./-])docs/[\w/-]+(?:\.[\w-]+)+")
MAPPED_DEPTH = 2


def named_pages(path: Path) -> set[str]:
    return set(PAGE.findall(path.read_text()))


def test_a_page_that_is_named_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in (README, ROOT / "Makefile", *SOURCES.rglob("*.py"))
        for page in named_pages(path)
    }
    assert len(named) >= 5
    assert {(path, page) for path, page in named if not (ROOT / page).is_file()} == set()


def test_pages_are_told_from_addresses() -> None:
    text = "https://host/x/docs/y.md, docs/a-b.md: see docs/c.md."
    assert PAGE.findall(text) == ["docs/a-b.md", "docs/c.md"]


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"(?:\]\(|\]: )([\w./-]+\.(?:md|svg))", page.read_text())
    assert [target for target in targets if not (page.parent / target).is_file()] == []


def mapped(tree: str) -> Iterator[str]:
    """Each directory and file that the map names first on a line, as a path below src/atomesh."""
    above: list[str] = []
    for line in tree.splitlines()[1:]:
        entry = re.match(r"([│ ]*)[├└]── ((?:[\w.]+/?(?:, )?)+)", line)
        if entry is None:
            continue
        names = entry[2].rstrip(", ").split(", ")
        above = [*above[: len(entry[1]) // 4], names[-1].rstrip("/")]
        for name in names:
            yield "/".join([*above[:-1], name])


def test_the_map_of_the_tree_is_the_trees() -> None:
    [tree] = re.findall(r"```\n(src/atomesh/\n.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    named = list(mapped(tree))
    rooms = {
        str(path.parent.relative_to(SOURCES)) + "/"
        for path in SOURCES.rglob("__init__.py")
        if 0 < len(path.relative_to(SOURCES).parts) - 1 <= MAPPED_DEPTH
    }
    files = {path.name for path in SOURCES.glob("*.py")}
    assert [name for name in named if not (SOURCES / name).exists()] == []
    assert rooms - set(named) == set()
    assert files - set(named) == set()
