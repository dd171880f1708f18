"""The headers that say where a request's time went, as far as is known when they go."""

from collections.abc import Sequence

from atomesh.clock import Clock
from atomesh.frontend.generation import Generation

SERVING_PATH = b"unified"


class ServerTiming:
    """`decode` runs from the first step's arrival to now; it is told only when the whole answer is there."""

    def __init__(self, clock: Clock, generations: Sequence[Generation]) -> None:
        self._clock = clock
        self._generations = generations
        self._first_step_at: float | None = None

    def saw_step(self) -> None:
        if self._first_step_at is None:
            self._first_step_at = self._clock.now()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Durations in milliseconds; of several prompts the slowest."""
        known = [generation.timings for generation in self._generations if generation.timings is not None]
        parts: list[str] = []
        if known:
            queue_s = max(timings.queue_s for timings in known)
            prefill_s = max(timings.prefill_s for timings in known)
            parts = [_part("queue", queue_s), _part("prefill", prefill_s), _part("transfer", 0.0)]
        if self._first_step_at is not None:
            parts.append(_part("decode", self._clock.now() - self._first_step_at))
        timing = [(b"server-timing", ", ".join(parts).encode())] if parts else []
        return [(b"x-serving-path", SERVING_PATH), *timing]


def _part(name: str, seconds: float) -> str:
    return f"{name};dur={seconds * 1000:.3f}"
