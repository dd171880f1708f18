"""Placement over the cluster as it is now: the shell that reads the registry and the clock for it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec.structs import replace as replaced

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import (
    RETRY_AFTER_S,
    Candidates,
    Placement,
    PlacementRules,
    candidates,
    choose,
    options,
    place,
    place_rest,
)
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.worker import ModelDescription

START_S = 60.0
PATIENCE_S = 5.0  # a silent worker is lost before that, or heard again


@dataclass(frozen=True, slots=True)
class Later:
    """It would take a worker that is silent: ask again when the cluster has changed, or give up with this."""

    error: AtomeshError


class Placer:
    """For one model."""

    def __init__(self, model: str, registry: WorkerRegistry, clock: Clock, rules: PlacementRules) -> None:
        self._is_closed = False
        self._model = model
        self._registry = registry
        self._clock = clock
        self._rules = rules
        self._opened_at = clock.now()

    def close(self) -> None:
        """Nothing is placed any more, neither what has been waiting for it."""
        self._is_closed = True
        self._registry.tell_change()

    def describe(self) -> ModelDescription:
        """The model as the least of its workers serves it, be it a silent one.

        Raises ServiceUnavailableError if none can.
        """
        workers = self._candidates().ready
        options(workers, self._rules_now())
        told = [worker.description.model for worker in workers if worker.description is not None]
        return replaced(told[0], max_model_len=min(model.max_model_len for model in told))

    async def find(self, wanted: Place | PlaceRest) -> Placed | Nowhere:
        """Waits for silent workers if it must, PATIENCE_S at most; to leave meanwhile costs nothing."""
        answer = self.ask(wanted)
        if not isinstance(answer, Later):
            return answer
        changed = asyncio.Event()
        with self._registry.heeding(changed.set), suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while isinstance(answer := self.ask(wanted), Later):
                    await changed.wait()
                    changed.clear()
        return Nowhere(answer.error) if isinstance(answer, Later) else answer

    def ask(self, wanted: Place | PlaceRest) -> Placed | Nowhere | Later:
        try:
            found = self._candidates(wanted.excluded)
            placement = choose(found, self._search(wanted))
            if placement is not None:
                return Placed(placement)
            return Later(_silence())
        except AtomeshError as error:
            return Nowhere(error)

    def _search(self, wanted: Place | PlaceRest) -> Callable[[Sequence[WorkerSnapshot]], Placement]:
        match wanted:
            case Place(request):
                return lambda workers: place(request, workers, self._rules_now())
            case PlaceRest(rest):
                return lambda workers: place_rest(rest, workers, self._rules)

    def _rules_now(self) -> PlacementRules:
        """At the start, workers that have not said hello yet are waited for, but not for ever."""
        is_starting = self._clock.now() - self._opened_at < START_S and any(
            worker.state == "connecting" for worker in self._registry.snapshot().workers
        )
        return replace(self._rules, may_fall_back=False) if is_starting else self._rules

    def _candidates(self, excluded: frozenset[str] = frozenset()) -> Candidates:
        if self._is_closed:
            raise ServiceUnavailableError("the server is shutting down; try again later")
        return candidates(self._model, self._registry.snapshot(), self._clock.now(), excluded)


def _silence() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the workers that could serve this have been silent for a while; try again in a few seconds",
        retry_after_s=RETRY_AFTER_S,
    )
