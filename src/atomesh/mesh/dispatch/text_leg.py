"""One request at one server of text: the work that it is there, and whoever hears what comes of it."""

from collections.abc import Sequence

from atomesh.errors import AtomeshError
from atomesh.mesh.cluster.breaker import is_fault
from atomesh.mesh.cluster.registry import Commitment
from atomesh.mesh.dispatch.watch import LegFollower


class TextLeg:
    """From its sending to one of its ends."""

    def __init__(self, commitment: Commitment, followers: Sequence[LegFollower]) -> None:
        self._commitment = commitment
        self._followers = followers
        commitment.sent()

    def began(self) -> None:
        """The prompt has been computed."""
        if not self._commitment.has_answered:
            self._commitment.prefilled()
            for follower in self._followers:
                follower.began(())

    def succeeded(self) -> None:
        self._commitment.succeeded()
        for follower in self._followers:
            follower.over(is_aborted=False)
        self._commitment.end()

    def failed(self, error: AtomeshError, now: float) -> None:
        if is_fault(error):
            self._commitment.failed(now)
        for follower in self._followers:
            follower.failed(error)
        self._commitment.end()

    def abort(self) -> None:
        """Its client has left, or its time is over."""
        for follower in self._followers:
            follower.over(is_aborted=True)
        self._commitment.end()
