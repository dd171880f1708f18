import os
import sys
from pathlib import Path

import pytest

from atomesh.cli.program import program_words


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `atomesh` in .venv/bin of the current directory, running."""
    program = tmp_path / ".venv" / "bin" / "atomesh"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", os.defpath)
    return program


def test_on_the_path_its_name_is_enough(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed.parent))
    assert program_words() == "atomesh"


def test_elsewhere_it_is_called_by_its_path_from_here(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program_words() == ".venv/bin/atomesh"
    monkeypatch.chdir(installed.parent)
    assert program_words() == "./atomesh"


@pytest.mark.usefixtures("installed")
def test_run_as_a_module_it_is_called_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/main.py"])
    assert program_words() == f"{sys.executable} -m atomesh"
