"""How a child tells its supervisor why it cannot run as asked, so that several say it once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

REFUSAL_FD = "ATOMESH_REFUSAL_FD"  # from the supervisor, for its children alone
MAX_BYTES = 4096  # a pipe takes so much at once


class RefusalPipe:
    """For one child's life: hand it `writable`, and `read` when it has ended."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)

    @contextmanager
    def writable(self) -> Iterator[int]:
        try:
            yield self._writer
        finally:
            os.close(self._writer)

    def read(self) -> str:
        """What the child has said, empty for nothing; closes."""
        try:
            return os.read(self._reader, MAX_BYTES).decode(errors="replace")
        except BlockingIOError:
            return ""
        finally:
            os.close(self._reader)


def refuse(message: str) -> bool:
    """Tell the supervisor; False where there is none to tell."""
    descriptor = os.environ.get(REFUSAL_FD, "")
    if not descriptor.isdigit():
        return False
    try:
        os.write(int(descriptor), message.encode()[:MAX_BYTES])
    except OSError:
        return False
    return True
