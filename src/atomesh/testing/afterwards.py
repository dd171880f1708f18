"""What holds of a server after every test, whatever was done to it: FAULTS.md, "After every test".

Every pool is back at its idle baseline, the gauges of what is in flight are zero, a plain request succeeds,
nothing has died by itself, and each answer has ended in exactly one way.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atomesh.testing.completion_client import Client
from atomesh.testing.served_process import wait_for

GAUGES = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "atomesh_requests_in_flight",
    "atomesh_tickets_open",
)
IDLE_STATES = ("free", "cached")
PROMPT = [3, 4, 5]
DEATH_CRIES = (
    "exception was never retrieved",
    "Exception in callback",
    "Exception in thread",
    "Exception ignored in",
    "Task was destroyed",
    "was never awaited",
    "the engine has failed",
    "the KV transport has failed",
    "the KV connection to",
)


class Watched(Protocol):
    """The server, as much of it as is looked at."""

    client: Client

    def workers(self) -> list[dict[str, Any]]: ...
    def kv(self) -> dict[str, Any]: ...
    def metric(self, name: str, **labels: str) -> float: ...


@dataclass(frozen=True, slots=True)
class Lives:
    """Who is there: the gateway by the time when it started, each worker by its incarnation."""

    gateway: float
    workers: dict[str, str]


def read_lives(server: Watched) -> Lives:
    workers = {one["id"]: one["incarnation"] for one in server.workers()}
    return Lives(server.metric("process_start_time_seconds"), workers)


@dataclass(slots=True)
class Watch:
    """`excused` are those that the test ends on purpose: worker ids, or "gateway"."""

    server: Watched
    lives: Lives
    log: Path | None
    log_begin: int
    excused: set[str]

    @classmethod
    def begin(cls, server: Watched, log: Path | None) -> "Watch":
        log_begin = 0 if log is None or not log.exists() else log.stat().st_size
        return cls(server, read_lives(server), log, log_begin, set())

    def findings(self, timeout_s: float) -> list[str]:
        """All that does not hold, in words. Waits so long for what may take its time."""
        found = [*self._find_improper_ends()]
        found += _settle(lambda: [*self._find_undead()], timeout_s)
        found += _settle(lambda: [*self._find_busy()], timeout_s)
        status = self.server.client.complete(PROMPT).status
        found += [] if status == 200 else [f"a plain request is answered with {status}"]
        found += _settle(lambda: [*self._find_busy()], timeout_s)
        return [*found, *self._find_deaths(), *self._find_cries()]

    def _find_improper_ends(self) -> Iterator[str]:
        client = self.server.client
        yield from client.improper
        if client.open_streams:
            yield f"{len(client.open_streams)} streams were neither read to their end nor left"
        client.improper.clear()
        client.open_streams.clear()

    def _find_busy(self) -> Iterator[str]:
        for name in GAUGES:
            if value := self.server.metric(name):
                yield f"{name} is {value:g}"
        answer = self.server.kv()
        if answer["open_tickets"]:
            yield f"{answer['open_tickets']} tickets are open"
        for worker in answer["workers"]:
            yield from _find_blocks(worker)
        for worker in self.server.workers():
            yield from _find_work(worker)

    def _find_undead(self) -> Iterator[str]:
        now = read_lives(self.server)
        if "gateway" in self.excused and now.gateway == self.lives.gateway:
            yield "the gateway was to be ended, and lives"
        for worker_id in self.excused & self.lives.workers.keys():
            if now.workers.get(worker_id) == self.lives.workers[worker_id]:
                yield f"worker {worker_id} was to be ended, and lives"

    def _find_deaths(self) -> Iterator[str]:
        now = read_lives(self.server)
        if now.gateway != self.lives.gateway and "gateway" not in self.excused:
            yield "the gateway has died"
        for worker_id, incarnation in self.lives.workers.items():
            if now.workers.get(worker_id) != incarnation and worker_id not in self.excused:
                yield f"worker {worker_id} has died"

    def _find_cries(self) -> Iterator[str]:
        if self.log is None:
            return
        said = self.log.read_bytes()[self.log_begin :].decode(errors="replace")
        yield from (line for line in said.splitlines() if any(cry in line for cry in DEATH_CRIES))


def _settle(find: Callable[[], list[str]], timeout_s: float) -> list[str]:
    """What is still to be found after that time."""
    try:
        wait_for(lambda: not find(), timeout_s)
    except AssertionError:
        return find()
    return []


def _find_blocks(worker: dict[str, Any]) -> Iterator[str]:
    if worker["total"] is None:
        yield f"{worker['id']} does not say who owns its blocks"
        return
    busy = {state: count for state, count in worker["states"].items() if count and state not in IDLE_STATES}
    if busy or worker["owners"]:
        yield f"{worker['id']} has blocks {busy} of {worker['owners']}"
    if sum(worker["states"].values()) != worker["total"]:
        yield f"{worker['id']} has lost count: {worker['states']} of {worker['total']}"


def _find_work(worker: dict[str, Any]) -> Iterator[str]:
    load = worker["load"]
    if worker["state"] != "ready":
        yield f"{worker['id']} is {worker['state']}"
    busy = {"in_flight": worker["in_flight"], "running": load["running"], "waiting": load["waiting"]}
    if any(busy.values()):
        yield f"{worker['id']} is busy: {busy}"
