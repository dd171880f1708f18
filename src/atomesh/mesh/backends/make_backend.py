"""From what the operator says of an engine to what drives it."""

from importlib import import_module

from atomesh.mesh.backends.backend import WorkerBackend
from atomesh.mesh.backends.context import BackendContext
from atomesh.mesh.backends.kinds import KINDS
from atomesh.mesh.backends.spec import BackendSpec


def make_backend(spec: BackendSpec, context: BackendContext) -> WorkerBackend:
    module, _, name = KINDS[spec.kind].partition(":")
    backend: WorkerBackend = getattr(import_module(module), name)(spec, context)
    return backend
