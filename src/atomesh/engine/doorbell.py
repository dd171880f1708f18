"""How a transport's thread tells the engine's that there is news."""

from collections.abc import Callable


class Doorbell:
    """`ring` may be called from any thread, also before somebody listens: who listens looks first."""

    def __init__(self) -> None:
        self._answer: Callable[[], None] = lambda: None

    def ring(self) -> None:
        self._answer()

    def on_ring(self, answer: Callable[[], None]) -> None:
        self._answer = answer
