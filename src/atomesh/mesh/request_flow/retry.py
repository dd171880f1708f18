"""What may be tried again, and what may not.

Before the first token a request is sent once more, whole, when its worker was lost or took no new work.
After it, the answer goes on elsewhere from the tokens that are there. A request that MAX_LOSSES workers may
have died of touches no other; one that was there when MAX_DEATHS died, suspected or not, neither. An error of
the request itself, be it a 4xx or the engine's, is never tried again.
"""

from dataclasses import dataclass, field

from atomesh.errors import AtomeshError, FatalRequestError, ServiceUnavailableError
from atomesh.mesh.request_flow.answer import Answer
from atomesh.mesh.request_flow.steps import LegFailed

MAX_ATTEMPTS = 2
RETRY_AFTER_S = 2
MAX_LOSSES = 2
MAX_DEATHS = 4


@dataclass(slots=True)
class Failures:
    """`excluded` are the incarnations that have failed the request."""

    excluded: frozenset[str] = frozenset()
    losses: int = 0
    deaths: int = 0
    attempts: int = 0
    last: LegFailed | None = field(default=None)

    def note(self, failure: LegFailed, answer: Answer) -> None:
        """Raises the error that the client shall see if it must end here."""
        self.last = failure
        self.attempts += 1
        self.deaths += failure.is_lost
        self.losses += failure.is_lost and failure.is_suspect
        self.excluded |= {failure.leg.worker.incarnation}
        if not self._may_go_on(failure, answer):
            raise self.final_error(answer)

    def final_error(self, answer: Answer) -> AtomeshError:
        """What to say when nobody else can do it: the last worker's own words, or that it was lost."""
        if self.last is None:
            raise AssertionError("nothing has failed")
        if not self.last.is_lost:
            return self.last.error
        if self.losses >= MAX_LOSSES:
            return FatalRequestError(f"{self.losses} workers were lost while they computed this answer")
        when = "while it computed this answer" if answer.has_begun else "before it answered"
        return ServiceUnavailableError(
            f"the worker was lost {when}, and no other can go on; send the request again",
            retry_after_s=RETRY_AFTER_S,
        )

    def _may_go_on(self, failure: LegFailed, answer: Answer) -> bool:
        if self.losses >= MAX_LOSSES or self.deaths >= MAX_DEATHS:
            return False
        if answer.has_begun:
            return answer.can_go_on_elsewhere and (failure.is_lost or failure.is_refusal)
        return self.attempts < MAX_ATTEMPTS and (
            failure.is_lost or isinstance(failure.error, ServiceUnavailableError)
        )
