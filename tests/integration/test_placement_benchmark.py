"""The benchmark itself, on a small trace of its own, and what it is made of."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.conversation_trace import write_conversation_trace

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "placement.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCHMARK, *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "conversations.jsonl"
    write_conversation_trace(path, 500)
    return path


def figures(trace: Path, *arguments: str | Path) -> dict[str, Any]:
    answer = run(
        "--trace",
        trace,
        "--requests",
        "300",
        "--workers",
        "4",
        "--blocks-per-worker",
        "1000",
        "--loads",
        "1",
        "--seeds",
        "0",
        "--json",
        *arguments,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_every_policy_answers_every_request(trace: Path) -> None:
    document = figures(trace, "--no-find-load")

    found = {one["policy"]: one for one in document["at_load"]}
    assert list(found) == [
        "kv_aware",
        "least_work",
        "round_robin",
        "random",
        "power_of_two",
        "prefix_hash",
        "cache_aware",
        "session",
        "ideal_shared_cache",
    ]
    assert {one["num_requests"] for one in found.values()} == {300}
    best = max(one["hit_rate"] for one in found.values())
    assert found["ideal_shared_cache"]["hit_rate"] > 0.95 * best > 0.3
    assert document["setting"]["seeds"] == [0]
    assert document["max_loads"] == {}


def test_the_same_seed_gives_the_same_figures(trace: Path) -> None:
    policies = ("--no-find-load", "--policies", "kv_aware", "random")

    first, second = (figures(trace, *policies)["at_load"] for _ in range(2))

    assert first == second


def test_several_processes_find_what_one_does(trace: Path) -> None:
    policies = ("--policies", "kv_aware", "round_robin", "--resolution", "0.05", "--seeds", "0", "3")

    first, second = (figures(trace, *policies, "--processes", number) for number in ("1", "2"))

    assert first == second
    assert len(first["max_loads"]["kv_aware"]) == 2
    assert first["max_loads"]["kv_aware"] != first["max_loads"]["round_robin"]


def test_the_page_says_what_load_each_policy_bears(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    policies = ("--policies", "kv_aware", "round_robin", "ideal_shared_cache")

    document = figures(trace, *policies, "--ttft-limit", "1.5", "--write", page)

    loads = {policy: found for policy, [found] in document["max_loads"].items()}
    assert loads["kv_aware"] > 0.9 * loads["ideal_shared_cache"]
    assert loads["kv_aware"] > 1.3 * loads["round_robin"] > 0.2
    share, lead = (loads["kv_aware"] / loads[other] for other in ("ideal_shared_cache", "round_robin"))
    load = loads["round_robin"]
    text = page.read_text()
    assert f"`kv_aware` bears {share:.3f} of the load of `ideal_shared_cache`" in text
    assert f"| `round_robin` | {load:.3f} | {lead:.3f} | one draw tells nothing |" in text
    assert "At load 1, the same for all:" in text


def test_a_trace_without_prefixes_is_refused(tmp_path: Path) -> None:
    lines = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.1,374,44\n2023-11-16 18:15:47.2,9,1\n"
    )
    trace = tmp_path / "azure.csv"
    trace.write_text(lines)

    answer = run("--trace", trace)

    assert answer.returncode == 1
    assert "374 tokens has 0 block ids" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_it_needs_no_torch(trace: Path) -> None:
    program = f"import sys; sys.modules['torch'] = None; sys.argv = {['placement.py', '--help']!r}; "
    program += f"sys.path.insert(0, {str(BENCHMARK.parent)!r}); import placement; placement.main()"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr
    assert "ideal_shared_cache" in answer.stdout
