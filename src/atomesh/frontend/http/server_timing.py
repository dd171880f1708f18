"""Where a request's time went and which way it took: as headers as far as known, and whole at the end."""

from collections.abc import Sequence
from typing import Any

from atomesh.clock import Clock
from atomesh.frontend.generation import Generation
from atomesh.protocol.generation import ServingPath

# Of several prompts' paths the one that an operator should hear of first stands for all.
_PATHS: tuple[ServingPath, ...] = ("recomputed", "local-prefill", "prefill-decode", "unified")


class ServerTiming:
    """`decode` runs from the first step's arrival to now; it is told only when the whole answer is there."""

    def __init__(self, clock: Clock, generations: Sequence[Generation]) -> None:
        self._clock = clock
        self._generations = generations
        self._first_step_at: float | None = None

    def saw_step(self) -> None:
        if self._first_step_at is None:
            self._first_step_at = self._clock.now()

    def headers(self, *, is_complete: bool = False) -> list[tuple[bytes, bytes]]:
        """Durations in milliseconds; what is not known yet is left out."""
        parts = [f"{name};dur={milliseconds:.3f}" for name, milliseconds in self._parts(is_complete).items()]
        path = self._path()
        found = {b"x-serving-path": path or "", b"server-timing": ", ".join(parts)}
        return [(name, value.encode()) for name, value in found.items() if value]

    def explanation(self) -> dict[str, Any]:
        """For the last chunk of a stream: the timings in milliseconds, and the path."""
        return {"timings": self._parts(is_complete=True), "serving_path": self._path()}

    def _parts(self, is_complete: bool) -> dict[str, float]:
        """Of several prompts the slowest, in each part."""
        parts: dict[str, float] = {}
        known = [generation.timings for generation in self._generations if generation.timings is not None]
        if known:
            parts["queue"] = max(timings.queue_s for timings in known)
            parts["prefill"] = max(timings.prefill_s for timings in known)
            parts["transfer"] = max(timings.transfer_s for timings in known)
        if is_complete and self._first_step_at is not None:
            parts["decode"] = self._clock.now() - self._first_step_at
        return {name: seconds * 1000 for name, seconds in parts.items()}

    def _path(self) -> ServingPath | None:
        return slowest_path(self._generations)


def slowest_path(generations: Sequence[Generation]) -> ServingPath | None:
    taken = {generation.serving_path for generation in generations}
    return next((path for path in _PATHS if path in taken), None)
