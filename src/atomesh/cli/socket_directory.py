"""Where a server keeps its workers' sockets; what killed servers have left is swept away."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARENT = Path("/tmp")  # noqa: S108  short, for a socket's path has little room
PREFIX = "atomesh-"
PID_FILE = "pid"


@contextmanager
def socket_directory(parent: Path = PARENT) -> Iterator[Path]:
    """A new directory that nobody else may look into, for as long as the block lasts.

    Its pid file is locked by this process, and by the kernel's doing no longer than it lives.
    """
    sweep(parent)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with _claim(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(parent: Path = PARENT) -> None:
    """Remove this user's directories whose server is dead; one without a pid file is left alone."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            if _is_ours(path) and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _claim(path: Path) -> Iterator[None]:
    """The pid file gets its name once it is locked: no sweep ever sees it free while its server lives."""
    draft = path / f".{PID_FILE}"
    with draft.open("w") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        draft.rename(path / PID_FILE)
        yield


def _is_ours(path: Path) -> bool:
    status = path.lstat()
    return path.is_dir() and not path.is_symlink() and status.st_uid == os.getuid()


def _is_abandoned(path: Path) -> bool:
    with (path / PID_FILE).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
