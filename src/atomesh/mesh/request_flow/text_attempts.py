"""What of a request in text may be tried again: only while its client has nothing of an answer.

A server that was lost, or took nothing new, is not asked again; the next one is. Refusals are charged to the
retry budget, losses are not. An error of the request itself, be it a 4xx or the engine's, ends it.
"""

from dataclasses import dataclass

from atomesh.errors import AtomeshError, EngineError, ServiceUnavailableError

MAX_ATTEMPTS = 3
RETRY_AFTER_S = 2


@dataclass(slots=True)
class TextAttempts:
    """`excluded` are the incarnations that have failed the request."""

    model: str
    excluded: frozenset[str] = frozenset()
    is_charged: bool = False
    _last_words: AtomeshError | None = None

    def note(self, incarnation: str, error: AtomeshError, *, is_lost: bool, has_begun: bool) -> None:
        """Raises the error that the client shall see if it must end here."""
        if has_begun:
            raise EngineError("the server broke off its answer; send the request again") if is_lost else error
        self.excluded |= {incarnation}
        self.is_charged = not is_lost
        self._last_words = None if is_lost else error
        may_go_on = is_lost or isinstance(error, ServiceUnavailableError)
        if not may_go_on or len(self.excluded) >= MAX_ATTEMPTS:
            raise self.final_error(error)

    def final_error(self, nowhere: AtomeshError) -> AtomeshError:
        """What to say when nobody else can do it: the last server's own words, or that it was lost."""
        if self._last_words is not None:
            return self._last_words
        if not self.excluded:
            return nowhere
        return ServiceUnavailableError(
            f"no server of {self.model[:200]!r} answers now; try again in a few seconds",
            retry_after_s=RETRY_AFTER_S,
        )
