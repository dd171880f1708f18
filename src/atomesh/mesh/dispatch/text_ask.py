"""A request in text, as whoever finds a server for it needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from atomesh.mesh.backends.text_servers import TextServer


@dataclass(frozen=True, slots=True)
class TextUsage:
    """What an answer took, in tokens: as its server says or, with `is_guess`, by the size of what came.

    None for `prompt_tokens` where nobody has said.
    """

    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    is_guess: bool = False


class TextAsk(Protocol):
    """One request, which may be sent to one server after another."""

    @property
    def has_begun(self) -> bool:
        """Its client has some of the answer."""
        ...

    @property
    def usage(self) -> TextUsage:
        """As far as the answer has come."""
        ...

    async def send_to(self, server: TextServer, began: Callable[[], None]) -> None:
        """Returns when the client has the whole answer; `began` is called with the first of it.

        Raises AtomeshError, WorkerLostError where the server is gone.
        """
        ...
