"""Which commit is measured."""

import subprocess
from pathlib import Path


def commit() -> str:
    """The commit that is measured; "+" says that tracked files differ from it."""
    revision = _git("rev-parse", "--short=10", "HEAD")
    return revision + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).parent
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.strip()
