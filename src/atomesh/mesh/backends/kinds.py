"""Every kind of engine that is not ours, by name; imported on use. A new one is a file, and a line here."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atomesh.mesh.backends.backend import WorkerBackend
    from atomesh.mesh.backends.context import BackendContext
    from atomesh.mesh.backends.spec import BackendSpec

_HERE = "atomesh.mesh.backends"

KINDS: Mapping[str, str] = {
    "vllm": f"{_HERE}.vllm:VllmBackend",
    "sglang": f"{_HERE}.sglang:SglangBackend",
    "openai": f"{_HERE}.openai:OpenAIBackend",
}


def make_backend(spec: "BackendSpec", context: "BackendContext") -> "WorkerBackend":
    module, _, name = KINDS[spec.kind].partition(":")
    backend: WorkerBackend = getattr(import_module(module), name)(spec, context)
    return backend
