"""A whole cluster as `atomesh serve` makes it, to be broken: workers by role, faults, every block's owner."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from atomesh.testing.afterwards import Watch
from atomesh.testing.completion_client import Client
from atomesh.testing.served_process import (
    ADMIN_TOKEN,
    Answer,
    ServedProcess,
    served_process,
    wait_for,
    wait_ready,
)
from atomesh.testing.wired_cluster import wired_cluster

SETTLE_S = 15.0
START_S = 60.0
RESTART_S = 60.0  # imports torch on a busy machine

running: list["PDBench"] = []


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers of each role; with a wire between them, or shared memory as `atomesh serve` has it."""

    prefill: int = 0
    decode: int = 0
    unified: int = 0
    is_wired: bool = False

    @property
    def name(self) -> str:
        if self.unified:
            return f"unified-{self.unified}{'-tcp' if self.is_wired else ''}"
        return f"{self.prefill}p{self.decode}d-{'tcp' if self.is_wired else 'shm'}"

    @property
    def is_apart(self) -> bool:
        return self.unified == 0

    def flags(self) -> list[str]:
        if self.unified:
            return [f"--unified={self.unified}"]
        return [f"--prefill={self.prefill}", f"--decode={self.decode}"]

    def workers(self) -> dict[str, str]:
        """Roles by worker id."""
        counts = {"prefill": self.prefill, "decode": self.decode, "unified": self.unified}
        return {f"{role}-{index}": role for role, count in counts.items() for index in range(count)}


UNIFIED = Shape(unified=1)
ONE_AND_ONE = Shape(prefill=1, decode=1)
TWO_AND_TWO = Shape(prefill=2, decode=2)
TWO_UNIFIED = Shape(unified=2)
TWO_UNIFIED_TCP = Shape(unified=2, is_wired=True)
ONE_AND_ONE_TCP = Shape(prefill=1, decode=1, is_wired=True)


class PDBench:
    """A ready server of one shape. `check` holds it to what must be true after every test.

    `is_given_up`: the test itself ends the server, and there is nothing to check.
    """

    def __init__(self, served: ServedProcess, shape: Shape, home: Path, log: Path | None = None) -> None:
        self.served = served
        self.shape = shape
        self.home = home
        self.client = Client(served.port, served.model)
        self.is_given_up = False
        self._log = log
        self._watch: Watch | None = None
        self._armed: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Who is there now must be there at the next `check`, unless the test ends it by our means."""
        self._watch = Watch.begin(self, self._log)

    def check(self, timeout_s: float = RESTART_S) -> None:
        """Raises AssertionError with all that is not as it must be after a test; then begins anew."""
        if self.is_given_up or self._watch is None:
            return
        wait_for(self.served.is_ready, timeout_s)
        self.disarm()
        found = self._watch.findings(timeout_s)
        self.begin()
        if found:
            raise AssertionError(f"after the test, at {self.shape.name}: " + "; ".join(found))

    def excuse(self, *names: str) -> None:
        """The test ends these on purpose: worker ids, or "gateway"."""
        if self._watch is not None:
            self._watch.excused.update(names)

    def end(self, worker: dict[str, Any], how: signal.Signals = signal.SIGKILL) -> None:
        self.excuse(worker["id"])
        os.kill(worker["pid"], how)

    @property
    def secret(self) -> bytes:
        """What the workers share."""
        return (self.home / "secret").read_text().strip().encode()

    def admin(self, method: str, path: str, body: object = None) -> Answer:
        return self.served.request(method, path, body, ADMIN_TOKEN)

    def workers(self, role: str | None = None) -> list[dict[str, Any]]:
        return [one for one in self.served.workers() if role is None or one["role"] == role]

    def worker(self, role: str) -> dict[str, Any]:
        """The only worker of this role; where there is but a unified one, that."""
        [worker] = self.workers(role if self.shape.is_apart else "unified")
        return worker

    def gateway_pid(self) -> int:
        if self.shape.is_wired:
            return self.served.process.pid
        workers = {worker["pid"] for worker in self.workers()}
        path = Path(f"/proc/{self.served.process.pid}/task/{self.served.process.pid}/children")
        [gateway] = [int(pid) for pid in path.read_text().split() if int(pid) not in workers]
        return gateway

    def kill(self, role: str) -> dict[str, Any]:
        """kill −9; the worker as it was."""
        worker = self.worker(role)
        self.end(worker)
        return worker

    def kill_gateway(self) -> None:
        self.excuse("gateway")
        os.kill(self.gateway_pid(), signal.SIGKILL)

    @contextmanager
    def frozen(self, role: str) -> Iterator[dict[str, Any]]:
        """SIGSTOP of the only worker of this role until the end of the block."""
        with self.frozen_worker(self.worker(role)) as worker:
            yield worker

    @contextmanager
    def frozen_worker(self, worker: dict[str, Any]) -> Iterator[dict[str, Any]]:
        os.kill(worker["pid"], signal.SIGSTOP)
        try:
            yield worker
        finally:
            os.kill(worker["pid"], signal.SIGCONT)

    def arm(self, role: str, point: str, count: int = 1, argument: float = 0.0) -> None:
        """The next `count` times that a worker of this role comes by `point` go wrong."""
        self._armed.add((role, point))
        for worker in self.workers(role if self.shape.is_apart else "unified"):
            shot = {"worker": worker["id"], "point": point, "count": count, "argument": argument}
            answer = self.admin("POST", "/debug/fault", shot)
            if answer.status != 200:
                raise AssertionError(f"{point} cannot be armed: {answer.body}")

    def disarm(self) -> None:
        """No shot is left at any point that was armed; every worker of those must be there."""
        for role, point in tuple(self._armed):
            self.arm(role, point, 0)
        self._armed.clear()

    def kv(self) -> dict[str, Any]:
        """Every worker's blocks by state and owner, and how many tickets are open."""
        return self.admin("GET", "/debug/kv").body

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the metric's samples that have these labels; 0 where there is none."""
        families = text_string_to_metric_families(self.client.get("/metrics"))
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(one.value for one in samples if labels.items() <= one.labels.items())

    def is_idle(self) -> bool:
        """Nothing runs or waits, and every block is free or merely cached."""
        return all(map(_is_idle, self.workers()))

    def settle(self, timeout_s: float = SETTLE_S) -> float:
        """Seconds until the server was ready, idle and its books right."""
        seconds = wait_for(self.served.is_ready, timeout_s)
        return seconds + wait_for(self.is_idle, timeout_s)


@contextmanager
def pd_bench(
    model: Path, home: Path, shape: Shape, flags: Sequence[str] = (), kv_memory: str = "32MiB"
) -> Iterator[PDBench]:
    """Started, and stopped at the end of the block. Prompts are computed in chunks of 128 tokens.

    `flags` are those of `atomesh serve`; a wired shape takes none.
    """
    engine = ["--enable-faults", "--max-num-batched-tokens=128"]
    log = None if shape.is_wired else home / "server.log"
    with ExitStack() as stack:
        if shape.is_wired:
            engine += ["--dtype=float32", f"--kv-memory={kv_memory}"]
            served = stack.enter_context(wired_cluster(model, home, shape.workers(), *engine))
            wait_for(served.is_ready, START_S)
            served.model = model.name
        else:
            words = [*shape.flags(), *engine, *flags]
            served = stack.enter_context(served_process(model, home, *words, kv_memory=kv_memory, log=log))
            wait_ready(served)
        bench = PDBench(served, shape, home, log)
        bench.settle(START_S)  # it is ready with the first worker; here all must be
        bench.begin()
        with watched(bench):
            yield bench


@contextmanager
def watched(bench: PDBench) -> Iterator[None]:
    """Among the `running`, whose `check` is called after every test; and now, at the end of the block."""
    running.append(bench)
    try:
        yield
        bench.check()
    finally:
        running.remove(bench)


def _is_idle(worker: dict[str, Any]) -> bool:
    load = worker["load"]
    return bool(
        worker["state"] == "ready"
        and load["running"] == load["waiting"] == worker["in_flight"] == 0
        and load.get("reserved_blocks", 0) == load.get("quarantined_blocks", 0) == 0
        and load["total_blocks"] > 0
        and load["free_blocks"] + load["cached_blocks"] == load["total_blocks"]
    )
