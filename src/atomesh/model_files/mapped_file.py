"""Read-only access to untrusted files: only plain files, sizes known before anything is read."""

import mmap
import os
import stat
from pathlib import Path

from atomesh.errors import ModelFileError


def map_file(path: Path) -> memoryview:
    """The whole file as read-only bytes, memory-mapped; the mapping lives as long as any slice of the view.

    Raises ModelFileError if it is missing, unreadable, empty or not a plain file.
    """
    descriptor, size = _open_plain_file(path)
    try:
        if size == 0:
            raise ModelFileError(f"{path.name} is empty: download the model again")
        return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ModelFileError(f"{path.name} cannot be mapped ({error.strerror})") from error
    finally:
        os.close(descriptor)


def read_small_file(path: Path, limit: int) -> bytes:
    """All bytes of a plain file of at most `limit` bytes; ModelFileError otherwise."""
    descriptor, size = _open_plain_file(path)
    with os.fdopen(descriptor, "rb") as file:
        check_size(path, size, limit)
        return file.read(limit)


def check_size(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise ModelFileError(
            f"{path.name} has {size} bytes, more than the {limit} that such a file may have: "
            "it is damaged or not what its name says"
        )


def plain_file_size(path: Path) -> int | None:
    """Size in bytes, links followed; None if nothing is there; ModelFileError if it is no plain file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return None
    _refuse_special_file(path, status.st_mode)
    return status.st_size


def _open_plain_file(path: Path) -> tuple[int, int]:
    try:
        # O_NONBLOCK: opening a named pipe must not wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path.name} cannot be opened ({error})") from error
    status = os.fstat(descriptor)
    try:
        _refuse_special_file(path, status.st_mode)
    except ModelFileError:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def _refuse_special_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path.name} is not a plain file: a model is read from plain files only")
