"""One request's deltas on their way from a worker's connection to whoever asked for them."""

import asyncio
from collections import deque

from atomesh.errors import AtomeshError
from atomesh.mesh.backends.wire_errors import to_exception
from atomesh.protocol.generation import TokenDelta


class RequestStream:
    """Holds at most one answer: it is bounded by the request's own max_tokens."""

    def __init__(self, choices: int) -> None:
        self._open_choices = choices
        self._steps: deque[list[TokenDelta]] = deque()
        self._error: AtomeshError | None = None
        self._arrived = asyncio.Event()
        self.has_begun = False

    @property
    def is_over(self) -> bool:
        """The worker will send no more for this request."""
        return self._open_choices <= 0 or self._error is not None

    def push(self, deltas: list[TokenDelta]) -> None:
        good = [delta for delta in deltas if delta.error is None]
        self._open_choices -= sum(delta.finish_reason is not None for delta in good)
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
        self._arrived.set()

    async def next(self) -> list[TokenDelta] | None:
        """The next step's deltas; None at the end. Raises AtomeshError when the request has failed."""
        while not self._steps:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        self.has_begun = True
        return self._steps.popleft()
