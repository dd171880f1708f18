"""Workers and a gateway as on several hosts: each started by itself, with TCP between all of them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from atomesh.testing.served_process import ADMIN_TOKEN, STOP_S, ServedProcess, command, free_port


class KeptProcess:
    """A process that is started again whenever it ends, as an operator's own supervisor would."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words = words
        self.follower: ServedProcess | None = None  # whose process is to be the one that runs now
        self._environment = environment
        self._is_stopping = False
        self.process = self._start()
        self._thread = threading.Thread(target=self._keep, name=words[0], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self.process.terminate()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self.process.kill()
            self._thread.join()

    def _keep(self) -> None:
        while True:
            self.process.wait()
            if self._is_stopping:
                return
            self.process = self._start()
            if self.follower is not None:
                self.follower.process = self.process

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603
            command(*self.words), env=self._environment, stdout=sys.stderr, text=True
        )


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """`flags` are for this worker alone."""

    role: str
    model: Path
    flags: tuple[str, ...] = ()


@contextmanager
def mixed_cluster(home: Path, plans: Mapping[str, WorkerPlan], *flags: str) -> Iterator[ServedProcess]:
    """The gateway's process, always the one that runs now, with workers by id, just started; all stopped in
    the end.

    `flags` are for all the workers.
    """
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ATOMESH_HOME": str(home), "ATOMESH_ADMIN_TOKEN": ADMIN_TOKEN}
    addresses = {worker_id: f"127.0.0.1:{free_port()}" for worker_id in plans}
    port = free_port()
    gateway = ["gateway", f"--port={port}", "--enable-faults"]
    with ExitStack() as stack:
        for worker_id, address in addresses.items():
            plan = plans[worker_id]
            words = ["worker", str(plan.model), f"--listen={address}", f"--worker-id={worker_id}"]
            words += [f"--role={plan.role}", "--threads=1", *plan.flags, *flags]
            stack.callback(KeptProcess(words, environment).stop)
        front = KeptProcess([*gateway, *(f"--worker={one}" for one in addresses.values())], environment)
        stack.callback(front.stop)
        front.follower = served = ServedProcess(front.process, port)
        yield served


@contextmanager
def wired_cluster(
    model: Path, home: Path, workers: Mapping[str, str], *flags: str
) -> Iterator[ServedProcess]:
    """A `mixed_cluster` of equals: `workers` are roles by worker id."""
    plans = {worker_id: WorkerPlan(role, model) for worker_id, role in workers.items()}
    with mixed_cluster(home, plans, *flags) as served:
        yield served
