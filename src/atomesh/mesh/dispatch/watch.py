"""Who watches the legs of requests: backends as they were, with whoever wants to hear what comes of a leg.

Nothing here decides anything; without watchers nothing is wrapped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from atomesh.errors import AtomeshError
from atomesh.frontend.token_service import Carry
from atomesh.mesh.dispatch.legs import Backend, LegStream
from atomesh.protocol.generation import DecodeLeg, GenerationRequest, Leg, PrefillLeg, TokenDelta
from atomesh.protocol.worker import WorkerDescription

LegKind = Literal["whole", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class SentLeg:
    """`attempt_id` is what the worker calls it; `takes_over` says that KV is to come from another worker."""

    attempt_id: str
    kind: LegKind
    worker_id: str
    incarnation: str
    takes_over: bool


class LegFollower(Protocol):
    """Hears of one leg: first tokens once, then one of the ends once."""

    def began(self, deltas: Sequence[TokenDelta]) -> None: ...

    def failed(self, error: AtomeshError) -> None: ...

    def over(self, *, is_aborted: bool) -> None: ...


LegWatcher = Callable[[SentLeg], LegFollower]
Describe = Callable[[str], WorkerDescription | None]


class WatchedBackends(Mapping[str, Backend]):
    """By worker address; `describe` knows who is there."""

    def __init__(
        self, inner: Mapping[str, Backend], watchers: Sequence[LegWatcher], describe: Describe
    ) -> None:
        self._inner = inner
        self._watchers = watchers
        self._describe = describe

    def __getitem__(self, address: str) -> Backend:
        return _WatchedBackend(self._inner[address], self._watchers, self._describe(address))

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


class _WatchedBackend:
    def __init__(
        self, inner: Backend, watchers: Sequence[LegWatcher], worker: WorkerDescription | None
    ) -> None:
        self._inner = inner
        self._watchers = watchers
        self._worker = worker

    def submit(self, request: GenerationRequest, leg: Leg | None) -> LegStream:
        sent = _sent(request.request_id, leg, self._worker)
        followers = [watch(sent) for watch in self._watchers]
        return _WatchedStream(self._inner.submit(request, leg), followers)

    def abort_attempt(self, request_id: str) -> None:
        self._inner.abort_attempt(request_id)


class _WatchedStream:
    """A leg that failed is released afterwards, and one that is over may be let go of twice."""

    def __init__(self, inner: LegStream, followers: Sequence[LegFollower]) -> None:
        self._inner = inner
        self._followers = followers
        self._has_begun = False
        self._is_over = False

    async def until_next(self) -> None:
        await self._inner.until_next()

    async def next(self, carry: Carry | None = None) -> list[TokenDelta] | None:
        try:
            deltas = await self._inner.next(carry)
        except AtomeshError as error:
            if self._ends():
                for follower in self._followers:
                    follower.failed(error)
            raise
        if deltas and not self._has_begun:
            self._has_begun = True
            for follower in self._followers:
                follower.began(deltas)
        return deltas

    async def until_lost(self) -> None:
        await self._inner.until_lost()

    def release(self) -> None:
        self._inner.release()
        self._tell_over(is_aborted=False)

    def abort(self) -> None:
        self._inner.abort()
        self._tell_over(is_aborted=True)

    def _tell_over(self, *, is_aborted: bool) -> None:
        if self._ends():
            for follower in self._followers:
                follower.over(is_aborted=is_aborted)

    def _ends(self) -> bool:
        """Whether it does so now."""
        was_over, self._is_over = self._is_over, True
        return not was_over


def _sent(attempt_id: str, leg: Leg | None, worker: WorkerDescription | None) -> SentLeg:
    kind: LegKind = "whole"
    takes_over = False
    match leg:
        case PrefillLeg():
            kind = "prefill"
        case DecodeLeg(ticket=ticket):
            kind, takes_over = "decode", ticket is not None
    worker_id, incarnation = ("", "") if worker is None else (worker.worker_id, worker.incarnation)
    return SentLeg(attempt_id, kind, worker_id, incarnation, takes_over)
