"""Our end of the process in which chat templates run."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from atomesh.errors import InvalidRequestError, ModelFileError, ServiceUnavailableError
from atomesh.frontend.templates.frames import FRAME_HEADER, decode_document, encode_document
from atomesh.frontend.templates.limits import TemplateLimits

_READ_BYTES = 1 << 20
_SIGNALS_FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


class TemplateError(InvalidRequestError):
    """A template did not render; `is_hostile` when it broke a limit or the sandbox."""

    def __init__(self, message: str, *, is_hostile: bool) -> None:
        super().__init__(message, param="messages")
        self.is_hostile = is_hostile


class TemplateRenderer:
    """Renders named templates in a child process, which is started again after it had to be stopped.

    Safe to use from several threads; renderings take turns. The child ends with this object, or this process.
    """

    def __init__(self, templates: Mapping[str, str]) -> None:
        """Starts the child and compiles. ModelFileError for a template not valid or over a limit."""
        self._compile = encode_document({"compile": dict(templates)})
        self._lock = threading.Lock()
        self._child = self._start()

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """Raises TemplateError: the template refused or failed, or broke a limit and was stopped.

        ServiceUnavailableError when somebody else stopped the child.
        """
        frame = encode_document({"render": name, "variables": variables})
        limits = TemplateLimits.for_request(len(frame))
        with self._lock:
            if not self._child.is_alive():
                self._child = self._start()
            answer = self._child.ask(frame, limits.wait_s)
        return _text(answer, limits, otherwise="cannot render these messages")

    def close(self) -> None:
        self._child.stop()

    def _start(self) -> "_Child":
        child = _Child()
        limits = TemplateLimits.for_request(len(self._compile))
        try:
            _text(child.ask(self._compile, limits.wait_s), limits, otherwise="is not valid")
        except TemplateError as error:
            child.stop()
            raise ModelFileError(f"{error.message}; name another with --chat-template") from error
        return child


class _Child:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "atomesh.frontend.templates.process"],
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


def _text(answer: Mapping[str, Any], limits: TemplateLimits, *, otherwise: str) -> str:
    if "error" not in answer:
        return str(answer["text"])
    kind, message = answer["error"], answer["message"]
    if kind == "killed":
        raise ServiceUnavailableError("the process that renders messages was stopped; send the request again")
    hostile = {
        "time": f"exceeded its limit of {limits.cpu_s:.1f} s of processor time",
        "memory": f"exceeded its limit of {limits.memory >> 20} MiB of memory",
        "output": f"exceeded its limit of {limits.output} characters of output",
        "depth": "calls itself too often",
        "died": "brought its own process down",
        "security": f"tried what templates must not do: {message}",
    }
    if kind in hostile:
        raise TemplateError(f"the chat template {hostile[kind]}", is_hostile=True)
    deed = "refused these messages" if kind == "refused" else otherwise
    raise TemplateError(f"the chat template {deed}: {message}", is_hostile=False)
