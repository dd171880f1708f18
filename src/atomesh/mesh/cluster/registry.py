"""What the gateway knows of its workers. The registry owns it; everyone else gets frozen snapshots."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from atomesh.protocol.worker import LoadReport, WorkerDescription

WorkerState = Literal["connecting", "ready", "lost"]


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """`description` is the last one heard, also of a lost worker; `heard_at` is in seconds on our clock.

    `in_flight` and `dispatched` count this gateway's requests: those not over yet, and all so far.
    """

    address: str
    state: WorkerState
    description: WorkerDescription | None
    load: LoadReport
    heard_at: float
    in_flight: int
    dispatched: int

    @property
    def model_name(self) -> str | None:
        return None if self.description is None else self.description.model.name


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    workers: tuple[WorkerSnapshot, ...]

    def ready(self, model: str) -> tuple[WorkerSnapshot, ...]:
        """The workers that can serve `model`."""
        return tuple(w for w in self.workers if w.state == "ready" and w.model_name == model)


@dataclass(slots=True)
class _Worker:
    state: WorkerState = "connecting"
    description: WorkerDescription | None = None
    load: LoadReport = field(default_factory=LoadReport)
    heard_at: float = 0.0
    in_flight: int = 0
    dispatched: int = 0


class WorkerRegistry:
    def __init__(self, on_hello: Callable[[WorkerDescription], None]) -> None:
        """`on_hello` hears each worker that connects, again after each reconnect."""
        self._workers: dict[str, _Worker] = {}
        self._on_hello = on_hello

    def expect(self, address: str) -> None:
        """A worker is to be reached at `address`."""
        self._workers[address] = _Worker()

    def connected(self, address: str, description: WorkerDescription, now: float) -> None:
        worker = self._workers[address]
        worker.state, worker.description, worker.heard_at = "ready", description, now
        worker.load = LoadReport()
        self._on_hello(description)

    def heard(self, address: str, load: LoadReport, now: float) -> None:
        worker = self._workers[address]
        worker.load, worker.heard_at = load, now

    def heard_at(self, address: str) -> float:
        return self._workers[address].heard_at

    def lost(self, address: str) -> None:
        worker = self._workers[address]
        if worker.state == "ready":
            worker.state, worker.load = "lost", LoadReport()

    def dispatched(self, address: str) -> None:
        worker = self._workers[address]
        worker.in_flight += 1
        worker.dispatched += 1

    def finished(self, address: str) -> None:
        self._workers[address].in_flight -= 1

    def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot(
            tuple(
                WorkerSnapshot(
                    address=address,
                    state=worker.state,
                    description=worker.description,
                    load=worker.load,
                    heard_at=worker.heard_at,
                    in_flight=worker.in_flight,
                    dispatched=worker.dispatched,
                )
                for address, worker in self._workers.items()
            )
        )
