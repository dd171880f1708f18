"""The frontend's one narrow door to whatever generates tokens: an engine in this process, or a mesh."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription


class TokenService(Protocol):
    def describe(self) -> ModelDescription:
        """The model that is served. Raises ServiceUnavailableError while nothing can serve it."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The request's deltas, one list a step, until each of its choices has a finish reason.

        Closing the generator early (`aclose`) aborts the request and frees its blocks. A failure is raised as
        an AtomeshError, before the first delta or after it; nothing follows it.
        """
        ...

    def load(self) -> LoadReport:
        """The load last heard of; all zero while nothing serves."""
        ...

    def loads(self) -> Mapping[str, LoadReport]:
        """The same, of each worker by its id."""
        ...
