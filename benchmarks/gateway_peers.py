"""The gateways that benchmarks compare: how each is started before given workers, and what CPU it took."""

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from atomesh.testing.served_process import children_of, free_port

START_S = 60.0
STOP_S = 10.0
ROUTERS = ("sglang-router", "vllm-router")
NGINX = "nginx"
CPU_CLOCK = 2  # of a process, in nanoseconds; Linux's include/linux/posix-timers.h
ROUTER_WORKER_S = 60


@dataclass(frozen=True, slots=True)
class Start:
    """A gateway's command. `ready_path` answers 200 once it serves its workers."""

    name: str
    words: Sequence[str]
    port: int
    ready_path: str = "/v1/models"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that runs. `pid` is None for no process at all: the worker itself, asked directly."""

    name: str
    port: int
    pid: int | None = None

    def cpu_s(self) -> float:
        """CPU seconds that it and its children have taken so far, threads that have ended included."""
        if self.pid is None:
            return 0.0
        return sum(process_cpu_s(pid) for pid in (self.pid, *children_of(self.pid)))

    def memory_bytes(self) -> int:
        """Resident, of it and its children."""
        if self.pid is None:
            return 0
        return sum(_resident(pid) for pid in (self.pid, *children_of(self.pid)))


def process_cpu_s(pid: int) -> float:
    """As the kernel counts it for all threads; 0 for one that is gone. Linux, clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime((~pid << 3) | CPU_CLOCK)
    except OSError:
        return 0.0


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def running(start: Start, cores: set[int], log: Path) -> Iterator[Gateway]:
    """On these cores, until the end of the block. RuntimeError with its last words if it is not ready."""
    with log.open("wb") as output, on_cores(cores):
        process = subprocess.Popen(
            start.words, env={**os.environ, **start.environment}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait_ready(start, process, log)
        yield Gateway(start.name, start.port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            for pid in children_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            process.kill()
            process.wait()


@contextmanager
def on_cores(cores: set[int]) -> Iterator[None]:
    """What is started within the block runs on these cores alone, where the system can see to that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def child(script: str, cores: set[int], *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Ends when its input does."""
    words = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    with on_cores(cores):
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(start: Start, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if _answers(start.port, start.ready_path):
            return
        time.sleep(0.1)
    words = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"{start.name} does not answer GET {start.ready_path} after {START_S:g} s:\n{words}")


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException, socket.gaierror):
        return False
    finally:
        connection.close()


def nginx(workers: Sequence[str], directory: Path) -> Start | None:
    """A reverse proxy that keeps connections and passes on what comes at once; None where there is none."""
    program = shutil.which(NGINX)
    if program is None:
        return None
    port = free_port()
    directory.mkdir(parents=True, exist_ok=True)
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in workers)
    paths = " ".join(
        f"{kind}_temp_path {directory}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"pid {directory}/pid; worker_processes 1; events {{ worker_connections 4096; }}\n"
        f"http {{ access_log off; {paths} client_max_body_size 64m; client_body_buffer_size 1m;\n"
        f"keepalive_requests 1000000; upstream engine {{ {servers} keepalive 512; "
        "keepalive_requests 1000000; }\n"
        f"server {{ listen 127.0.0.1:{port} backlog=1024; location / {{ proxy_pass http://engine;\n"
        'proxy_http_version 1.1; proxy_set_header connection ""; proxy_buffering off; } } }\n'
    )
    words = [program, "-p", str(directory), "-c", str(config), "-e", str(directory / "error.log")]
    return Start(NGINX, [*words, "-g", "daemon off;"], port)


def router(name: str, environment: Path, workers: Sequence[str], *flags: str) -> Start:
    """`name` is sglang-router or vllm-router, installed in `environment`."""
    port = free_port()
    module = name.replace("-", "_") + ".launch_router"
    words = [str(environment / "bin/python"), "-m", module, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--worker-urls", *workers, "--prometheus-port", str(free_port()), "--log-level"]
    words += ["error", "--worker-startup-check-interval", "1"]
    words += ["--worker-startup-timeout-secs", str(ROUTER_WORKER_S), *flags]
    return Start(name, words, port, ready_path="/v1/models")


def atomesh(name: str, home: Path, *flags: str) -> Start:
    """Our gateway, with whatever workers `flags` name."""
    port = free_port()
    words = [sys.executable, "-m", "atomesh.cli.main", "gateway", f"--port={port}", *flags]
    environment = {"ATOMESH_HOME": str(home), "ATOMESH_API_KEYS": "", "ATOMESH_ADMIN_TOKEN": ""}
    return Start(name, words, port, ready_path="/ready", environment=environment)


def make_routers(environment: Path) -> None:
    """Install both into a virtual environment of their own, if it is not there."""
    python = environment / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    if any(not (environment / "bin" / name).exists() for name in ROUTERS):
        subprocess.run([str(python), "-m", "pip", "install", "-q", *ROUTERS], check=True)


def router_versions(environment: Path) -> dict[str, str]:
    code = f"from importlib.metadata import version; print(*(version(one) for one in {ROUTERS!r}))"
    answer = subprocess.run(
        [str(environment / "bin/python"), "-c", code], capture_output=True, text=True, check=True
    )
    return dict(zip(ROUTERS, answer.stdout.split(), strict=True))
