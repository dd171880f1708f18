"""The frontend's one narrow door to whatever generates tokens: an engine in this process, or a mesh."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from atomesh.protocol.generation import GenerationRequest, TokenDelta
from atomesh.protocol.worker import LoadReport, ModelDescription


class Carried(Enum):
    """What became of a step's deltas that were to go to the client at once."""

    NO = auto()  # nothing: they go the usual way
    YES = auto()
    LAST = auto()  # and the client wants no more


@dataclass(frozen=True, slots=True)
class Carry:
    """Takes steps to the client at once. Neither call raises anything.

    `take` is given a step's deltas. `untold` hears of those that were taken and will not come out of the
    generator, because it ends while it is waited for.
    """

    take: Callable[[Sequence[TokenDelta]], Carried]
    untold: Callable[[Sequence[TokenDelta]], None]

    def heard_by(self, listener: Callable[[Sequence[TokenDelta]], None]) -> "Carry":
        """The same; `listener` hears of what is untold as well."""

        def untold(deltas: Sequence[TokenDelta]) -> None:
            listener(deltas)
            self.untold(deltas)

        return Carry(self.take, untold)


class TokenService(Protocol):
    def describe(self) -> ModelDescription:
        """The model that is served. Raises ServiceUnavailableError while nothing can serve it."""
        ...

    def generate(
        self, request: GenerationRequest, carry: Carry | None = None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """The request's deltas, one list a step, until each of its choices has a finish reason.

        `carry` may take a step's deltas the moment they arrive, while the generator is waited for and nothing
        else has happened but tokens. Those that it has taken come out of the generator as well, in order,
        those of several steps in one list, so that all who count them may do so a little later; at the latest
        they are untold.

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
