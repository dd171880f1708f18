"""Placement over the cluster as it is now: the shell that reads the registry and the clock for it."""

from dataclasses import replace

from msgspec.structs import replace as replaced

from atomesh.clock import Clock
from atomesh.errors import AtomeshError, ServiceUnavailableError
from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import (
    PlacementRules,
    Unified,
    candidates,
    options,
    place,
    place_rest,
)
from atomesh.mesh.request_flow.steps import Nowhere, Place, Placed, PlaceRest
from atomesh.protocol.worker import ModelDescription

START_S = 60.0


class Placer:
    """For one model. `is_closed`: nothing new is placed any more."""

    def __init__(self, model: str, registry: WorkerRegistry, clock: Clock, rules: PlacementRules) -> None:
        self.is_closed = False
        self._model = model
        self._registry = registry
        self._clock = clock
        self._rules = rules
        self._opened_at = clock.now()

    def describe(self) -> ModelDescription:
        """The model as the least of its workers serves it. Raises ServiceUnavailableError if none can."""
        workers = self._workers()
        options(workers, self._rules_now())
        told = [worker.description.model for worker in workers if worker.description is not None]
        return replaced(told[0], max_model_len=min(model.max_model_len for model in told))

    def place(self, wanted: Place) -> Placed | Nowhere:
        try:
            workers = self._workers(wanted.excluded)
            return Placed(place(wanted.request, workers, self._rules_now()))
        except AtomeshError as error:
            return Nowhere(error)

    def place_rest(self, wanted: PlaceRest) -> Placed | Nowhere:
        try:
            workers = self._workers(wanted.excluded)
            worker = place_rest(workers, wanted.like, wanted.num_tokens, wanted.choices)
            return Placed(Unified(worker, is_fallback=True))
        except AtomeshError as error:
            return Nowhere(error)

    def _rules_now(self) -> PlacementRules:
        """At the start, workers that have not said hello yet are waited for, but not for ever."""
        is_starting = self._clock.now() - self._opened_at < START_S and any(
            worker.state == "connecting" for worker in self._registry.snapshot().workers
        )
        return replace(self._rules, may_fall_back=False) if is_starting else self._rules

    def _workers(self, excluded: frozenset[str] = frozenset()) -> tuple[WorkerSnapshot, ...]:
        if self.is_closed:
            raise ServiceUnavailableError("the server is shutting down; try again later")
        return candidates(self._model, self._registry.snapshot(), self._clock.now(), excluded)
