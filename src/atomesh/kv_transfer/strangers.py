"""Who has called and not said hello yet: not many, not for long, and the newest have their chance."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Strangers(Generic[T]):
    """Deadlines are to be given in the order in which they end."""

    def __init__(self) -> None:
        self._deadlines: dict[T, float] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, stranger: T, deadline: float) -> None:
        self._deadlines[stranger] = deadline

    def discard(self, stranger: T) -> None:
        """It is gone, or a stranger no more."""
        self._deadlines.pop(stranger, None)

    def oldest(self) -> T:
        """Who speaks at once is not among them for long enough to be the oldest of many."""
        return next(iter(self._deadlines))

    def next_deadline(self) -> float | None:
        return next(iter(self._deadlines.values()), None)

    def overdue(self, now: float) -> Iterator[T]:
        """Those whose deadline has passed; each must be discarded before the next is asked for."""
        while self._deadlines and next(iter(self._deadlines.values())) <= now:
            yield self.oldest()
