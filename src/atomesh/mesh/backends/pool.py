"""The workers that this gateway talks to: each backend with the task that keeps its connection."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.backends.backend import WorkerBackend
from atomesh.mesh.backends.tireless import tirelessly
from atomesh.mesh.cluster.registry import WorkerRegistry

_log = logging.getLogger(__name__)


class BackendPool(Mapping[str, WorkerBackend]):
    """By address. Members that join while `run` runs are connected at once."""

    def __init__(self, make_backend: Callable[[str], WorkerBackend], registry: WorkerRegistry) -> None:
        self._make_backend = make_backend
        self._registry = registry
        self._backends: dict[str, WorkerBackend] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    def __getitem__(self, address: str) -> WorkerBackend:
        return self._backends[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._backends)

    def __len__(self) -> int:
        return len(self._backends)

    async def run(self) -> None:
        """Keep all connections until cancelled; what goes wrong with one is no other's trouble."""
        async with asyncio.TaskGroup() as self._group:
            for address in self._backends:
                self._keep_connected(address)
            await asyncio.Event().wait()

    def add(self, address: str) -> None:
        """Raises ConfigurationError when `address` is none. A second call for an address changes nothing."""
        if address in self._backends:
            return
        self.join(self._make_backend(address))

    def join(self, backend: WorkerBackend) -> None:
        """One that is already made, at an address where there is none yet."""
        self._backends[backend.address] = backend
        if self._group is not None:
            self._keep_connected(backend.address)

    def remove(self, address: str) -> None:
        """At once: what the worker still computes for us goes on elsewhere, where it can."""
        if self._backends.pop(address, None) is not None:
            _log.info("%s is removed", self._name(address))
        self._registry.forget(address)
        if (task := self._tasks.pop(address, None)) is not None:
            task.cancel()

    def drain(self, address: str) -> None:
        """Give the worker nothing new, and remove it when it has nothing left to do."""
        _log.info("%s gets nothing new, and is removed once it has nothing left to do", self._name(address))
        self._registry.drain(address, lambda: self.remove(address))

    def _name(self, address: str) -> str:
        told = self._registry.description(address)
        return f"the worker at {address}" if told is None else f"worker {told.worker_id} ({address})"

    def end_all(self, reason: str) -> None:
        for backend in self._backends.values():
            backend.fail_all(ServiceUnavailableError(reason))

    def _keep_connected(self, address: str) -> None:
        if self._group is not None:
            kept = tirelessly(f"the connection to {address}", self._backends[address].run)
            self._tasks[address] = self._group.create_task(kept)
