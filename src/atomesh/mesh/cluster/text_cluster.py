"""The registry as one text model's requests see it: who serves that model, each as if it had no other."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from msgspec.structs import replace as replaced

from atomesh.mesh.cluster.registry import WorkerRegistry
from atomesh.mesh.cluster.snapshot import ClusterSnapshot, WorkerSnapshot
from atomesh.protocol.worker import WorkerDescription


class TextCluster:
    """Implements `cluster.Cluster`. A server that has as many requests as it may be given is full."""

    def __init__(self, model: str, registry: WorkerRegistry) -> None:
        self._model = model
        self._registry = registry
        self._whole = ClusterSnapshot(())
        self._part = ClusterSnapshot(())
        self._descriptions: dict[str, tuple[WorkerDescription, WorkerDescription]] = {}  # as told, as shown

    def snapshot(self) -> ClusterSnapshot:
        whole = self._registry.snapshot()
        if whole is not self._whole:
            shown = [one for worker in whole.workers if (one := self._as_serving(worker)) is not None]
            self._whole, self._part = whole, ClusterSnapshot(tuple(shown))
            self._forget_left()
        return self._part

    def heeding(self, on_change: Callable[[], None], /) -> AbstractContextManager[None]:
        return self._registry.heeding(on_change)

    def tell_change(self) -> None:
        self._registry.tell_change()

    def _as_serving(self, worker: WorkerSnapshot) -> WorkerSnapshot | None:
        told = worker.description
        shown = None if told is None else self._description(worker.address, told)
        if shown is None:
            return None
        is_full = 0 < shown.max_num_seqs <= worker.in_flight
        return replace(worker, description=shown, is_full=is_full)

    def _description(self, address: str, told: WorkerDescription) -> WorkerDescription | None:
        known = self._descriptions.get(address)
        if known is not None and known[0] is told:
            return known[1]
        model = next((text for text in told.texts if text.name == self._model), None)
        if model is None:
            return None
        shown = replaced(told, model=model, texts=())
        self._descriptions[address] = (told, shown)
        return shown

    def _forget_left(self) -> None:
        if len(self._descriptions) > len(self._part.workers):
            there = {worker.address for worker in self._part.workers}
            self._descriptions = {key: value for key, value in self._descriptions.items() if key in there}
