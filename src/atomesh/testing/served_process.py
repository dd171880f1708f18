"""`atomesh serve` as a user starts it: a process with children of its own, on a free port."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADMIN_TOKEN = "the-operators-own-token"  # noqa: S105  of a server that lives as long as a test
PATIENCE_S = 60.0
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(slots=True)
class ServedProcess:
    process: "subprocess.Popen[str]"
    port: int
    model: str = ""
    log: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: object = None, token: str = "") -> Answer:
        """Raises OSError while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), json.loads(response.read()))
        finally:
            connection.close()

    def complete(self, prompt: object, max_tokens: int = 4) -> Answer:
        """A greedy completion."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.request("POST", "/v1/completions", body)

    def workers(self) -> list[dict[str, Any]]:
        """What the operator sees of the workers."""
        answer = self.request("GET", "/workers", token=ADMIN_TOKEN)
        workers: list[dict[str, Any]] = answer.body["workers"]
        return workers

    def is_ready(self) -> bool:
        try:
            return self.request("GET", "/ready").status == 200
        except OSError:
            return False


@contextmanager
def served_process(
    model: Path | str, home: Path, *flags: str, kv_memory: str = "32MiB", log: Path | None = None
) -> Iterator[ServedProcess]:
    """The server just started, not ready yet; stopped at the end of the block, if it still runs.

    What it says on stderr goes to `log`; without one it is read only in the end.
    """
    port = free_port()
    words = [f"--port={port}", "--json", "--dtype=float32", f"--kv-memory={kv_memory}", *flags]
    environment = {
        **os.environ,
        "ATOMESH_HOME": str(home),
        "ATOMESH_ADMIN_TOKEN": ADMIN_TOKEN,
        "ATOMESH_API_KEYS": "",
    }
    with nullcontext(subprocess.PIPE) if log is None else log.open("w") as stderr:
        process = subprocess.Popen(  # noqa: S603
            command("serve", str(model), *words),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield ServedProcess(process, port, log=log)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def command(*words: str) -> Sequence[str]:
    return (sys.executable, "-m", "atomesh.cli.main", *words)


def wait_ready(served: ServedProcess) -> dict[str, Any]:
    """What the server writes to stdout once it is ready."""
    output = served.process.stdout
    line = "" if output is None else output.readline()
    if not line:
        words = served.process.communicate()[1] if served.log is None else served.log.read_text()
        raise AssertionError(f"the server has ended: {words}")
    document: dict[str, Any] = json.loads(line)
    served.model = document["model"]
    return document


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> float:
    """Seconds until `condition` held. Raises AssertionError when it never does."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise AssertionError(f"still not so after {timeout_s} s")
        time.sleep(0.02)
    return time.monotonic() - began


def children_of(pid: int) -> list[int]:
    """The live processes below `pid`, at any depth."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[int] = []
    for child in parents.get(pid, []):
        found += [child, *children_of(child)]
    return found


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _stat(pid: int) -> list[str] | None:
    """State, parent and what follows in /proc/PID/stat."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
