"""Workers and a gateway as on several hosts: each started by itself, with TCP between all of them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atomesh.testing.served_process import ADMIN_TOKEN, STOP_S, ServedProcess, command, free_port


class KeptProcess:
    """A process that is started again whenever it ends, as an operator's own supervisor would."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.words = words
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

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603
            command(*self.words), env=self._environment, stdout=sys.stderr, text=True
        )


@contextmanager
def wired_cluster(
    model: Path, home: Path, workers: Mapping[str, str], *flags: str
) -> Iterator[ServedProcess]:
    """The gateway's process with `workers`, roles by worker id, just started; all stopped in the end.

    `flags` are for the workers.
    """
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "ATOMESH_HOME": str(home), "ATOMESH_ADMIN_TOKEN": ADMIN_TOKEN}
    addresses = {worker_id: f"127.0.0.1:{free_port()}" for worker_id in workers}
    port = free_port()
    gateway = ["gateway", f"--port={port}", "--enable-faults"]
    with ExitStack() as stack:
        for worker_id, address in addresses.items():
            words = ["worker", str(model), f"--listen={address}", f"--worker-id={worker_id}", *flags]
            kept = KeptProcess([*words, f"--role={workers[worker_id]}", "--threads=1"], environment)
            stack.callback(kept.stop)
        front = KeptProcess([*gateway, *(f"--worker={one}" for one in addresses.values())], environment)
        stack.callback(front.stop)
        yield ServedProcess(front.process, port)
