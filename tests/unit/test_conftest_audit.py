"""The watch on code made from data can fail: it sees what it is there to see."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture
def watch_module():
    return next(
        module for name, module in sys.modules.items()
        if name.endswith("conftest") and hasattr(module, "violations")
    )  # fmt: skip


def test_exec_by_our_own_code_is_seen_and_import_is_not(watch_module, monkeypatch, tmp_path: Path):
    module_file = tmp_path / "culprit.py"
    module_file.write_text("def run():\n    exec('1 + 1')\n")
    monkeypatch.setattr(watch_module, "SOURCE", str(tmp_path))
    spec = importlib.util.spec_from_file_location("culprit", module_file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert watch_module.violations == []
    module.run()
    seen = list(watch_module.violations)
    watch_module.violations.clear()
    assert [line.split()[0] for line in seen] == ["compile", "exec"]
