"""Our end of the process in which chat templates run."""

import threading
from collections.abc import Mapping
from typing import Any

from atomesh.errors import InvalidRequestError, ModelFileError, ServiceUnavailableError
from atomesh.frontend.children.frames import encode_document
from atomesh.frontend.children.limited_child import LimitedChild
from atomesh.frontend.templates.limits import TemplateLimits

_MODULE = "atomesh.frontend.templates.process"


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

    def _start(self) -> LimitedChild:
        child = LimitedChild(_MODULE)
        limits = TemplateLimits.for_request(len(self._compile))
        try:
            _text(child.ask(self._compile, limits.wait_s), limits, otherwise="is not valid")
        except TemplateError as error:
            child.stop()
            raise ModelFileError(f"{error.message}; name another with --chat-template") from error
        return child


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
