"""What a connection has still to write, in order. An item makes its bytes when its turn comes, not before."""

from collections import deque
from collections.abc import Callable, Iterator

# Yields the bytes of one item, piece by piece; it is resumed when a piece has gone to the kernel as a whole.
Item = Iterator[memoryview]
MAX_ITEMS = 8192


class Outbox:
    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._piece = memoryview(b"")

    def __bool__(self) -> bool:
        return bool(self._items) or bool(self._piece)

    @property
    def is_full(self) -> bool:
        return len(self._items) >= MAX_ITEMS

    def put(self, item: Item) -> None:
        self._items.append(item)

    def write(self, send: Callable[[memoryview], int], budget: int) -> None:
        """Until all is written, `budget` bytes have gone, or `send` raises BlockingIOError."""
        while budget > 0 and self._advance():
            sent = send(self._piece)
            self._piece = self._piece[sent:]
            budget -= sent
        if not self._piece:
            self._advance()

    def blank(self, zeros: memoryview) -> None:
        """What is left of the piece under way is written as zeros, its own memory is read no more."""
        self._piece = zeros[: len(self._piece)]

    def _advance(self) -> bool:
        """Whether there is a piece to write."""
        while not self._piece and self._items:
            piece = next(self._items[0], None)
            if piece is None:
                self._items.popleft()
            else:
                self._piece = piece
        return bool(self._piece)
