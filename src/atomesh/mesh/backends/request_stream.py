"""One leg's deltas on their way from a worker's connection to whoever asked for them."""

import asyncio
from collections import deque
from collections.abc import Callable

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.wire_errors import to_exception
from atomesh.mesh.backends.worker_lost import WorkerLostError
from atomesh.protocol.generation import TokenDelta


class RequestStream:
    """Holds at most one answer: it is bounded by the request's own max_tokens."""

    def __init__(
        self, choices: int, leave: Callable[[bool], None], *, is_first_token_all: bool = False
    ) -> None:
        """`choices` are still open; with `is_first_token_all` a choice is over with its first token.

        `leave` is called once, when nobody listens any more, with whether the worker shall forget the leg.
        """
        self._open_choices = choices
        self._is_first_token_all = is_first_token_all
        self._leave = leave
        self._steps: deque[list[TokenDelta]] = deque()
        self._error: AtomeshError | None = None
        self._arrived = asyncio.Event()
        self._lost = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The worker will send no more for this leg."""
        return self._open_choices <= 0 or self._error is not None

    def push(self, deltas: list[TokenDelta]) -> None:
        good = [delta for delta in deltas if delta.error is None]
        self._open_choices -= sum(map(self._ends_choice, good))
        if good:
            self._steps.append(good)
        for delta in deltas:
            if delta.error is not None:
                self.fail(to_exception(delta.error))
        self._arrived.set()

    def fail(self, error: AtomeshError) -> None:
        """What has arrived is still delivered, then `error` is raised."""
        if not self.is_over:
            self._error = error
        if isinstance(error, WorkerLostError):
            self._lost.set()
        self._arrived.set()

    async def until_lost(self) -> None:
        """Returns when the worker is gone, also after the end of the leg."""
        await self._lost.wait()

    async def until_next(self) -> None:
        """Returns when `next` has something to say."""
        while not self._steps and not self.is_over:
            self._arrived.clear()
            await self._arrived.wait()

    async def next(self) -> list[TokenDelta] | None:
        """The next step's deltas; None at the end. Raises AtomeshError when the leg has failed."""
        if not self._steps:
            await self.until_next()
        if self._steps:
            return self._steps.popleft()
        if self._error is not None:
            raise self._error
        return None

    def release(self) -> None:
        """Nobody listens any more, and the worker has nothing left to do."""
        self._leave(False)

    def abort(self) -> None:
        """Nobody listens any more, and the worker shall forget the leg."""
        self._leave(self._error is None and (not self.is_over or self._is_first_token_all))

    def _ends_choice(self, delta: TokenDelta) -> bool:
        return delta.finish_reason is not None or self._is_first_token_all
