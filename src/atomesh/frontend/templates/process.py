"""The process in which chat templates run: they are strangers' programs, and only the kernel can stop one.

`TemplateRenderer` speaks to it over its standard input and output. Each document is handled under limits of
processor time (SIGPROF ends the process) and of address space. It ends when its input does.
"""

import resource
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError

from atomesh.frontend.children.frames import FRAME_HEADER, decode_document, encode_document
from atomesh.frontend.templates.limits import TemplateLimits
from atomesh.frontend.templates.sandbox import RefusedByTemplateError, template_environment

_MAX_MESSAGE_CHARS = 500


class _OutputLimitError(Exception):
    pass


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer documents until `source` ends."""
    templates: dict[str, Template] = {}
    while header := source.read(FRAME_HEADER.size):
        (size,) = FRAME_HEADER.unpack(header)
        body = source.read(size)
        limits = TemplateLimits.for_request(size)
        _limit_this_process(limits)
        sink.write(encode_document(_answer(body, templates, limits)))
        sink.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_this_process(limits: TemplateLimits) -> None:
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    if sys.platform != "linux":  # elsewhere the kernel keeps no account of address space
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limits.memory if hard == resource.RLIM_INFINITY else min(limits.memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _answer(body: bytes, templates: dict[str, Template], limits: TemplateLimits) -> dict[str, Any]:
    try:
        document = decode_document(body)
        if "compile" in document:
            environment = template_environment()
            templates.update(
                {name: environment.from_string(text) for name, text in document["compile"].items()}
            )
            return {"text": ""}
        return {"text": _render(templates[document["render"]], document["variables"], limits.output)}
    except Exception as error:  # noqa: BLE001  the root of the process: whatever a template does is an answer
        return {"error": _kind(error), "message": _words(error)}


def _render(template: Template, variables: Mapping[str, Any], max_chars: int) -> str:
    parts: list[str] = []
    left = max_chars
    for part in template.generate(variables):
        left -= len(part)
        if left < 0:
            raise _OutputLimitError
        parts.append(part)
    return "".join(parts)


def _kind(error: Exception) -> str:
    match error:
        case MemoryError():
            return "memory"
        case RecursionError():
            return "depth"
        case _OutputLimitError():
            return "output"
        case SecurityError():
            return "security"
        case RefusedByTemplateError():
            return "refused"
    return "failed"


def _words(error: Exception) -> str:
    words = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    return words[:_MAX_MESSAGE_CHARS]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end closes our input
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
