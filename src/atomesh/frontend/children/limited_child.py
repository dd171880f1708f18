"""A process for strangers' work, which only the kernel can stop: it is asked in frames, and put an end to.

The process limits itself: SIGPROF ends it where it has used up its processor time.
"""

import os
import select
import signal
import subprocess
import sys
import time
import weakref
from typing import Any

from atomesh.frontend.children.frames import FRAME_HEADER, decode_document

_READ_BYTES = 1 << 20
_SIGNALS_FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


class LimitedChild:
    """One question at a time; it ends with this object, or this process."""

    def __init__(self, module: str) -> None:
        """Starts `python -m module`."""
        self._process = subprocess.Popen(  # noqa: S603  modules of ours alone
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.stop = weakref.finalize(self, _end, self._process)

    def is_alive(self) -> bool:
        return self.stop.alive and self._process.poll() is None

    def ask(self, frame: bytes, wait_s: float) -> dict[str, Any]:
        """Its answer; {"error": "time" | "killed" | "died"} when it gave none, and then it has ended."""
        deadline = time.monotonic() + wait_s
        try:
            self._write(frame)
            (size,) = FRAME_HEADER.unpack(self._read(FRAME_HEADER.size, deadline))
            return decode_document(self._read(size, deadline))
        except (EOFError, BrokenPipeError, TimeoutError) as error:
            code = -signal.SIGPROF if isinstance(error, TimeoutError) else self._process.wait()
            self.stop()
            return {"error": _cause(code), "message": ""}

    def _write(self, frame: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101  it was asked for
        left = memoryview(frame)
        while left:
            left = left[os.write(self._process.stdin.fileno(), left) :]

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101  it was asked for
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        data = bytearray()
        while len(data) < size:
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                raise TimeoutError
            part = os.read(descriptor, min(size - len(data), _READ_BYTES))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def _cause(code: int) -> str:
    if code == -signal.SIGPROF:
        return "time"
    return "killed" if -code in _SIGNALS_FROM_OUTSIDE else "died"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
