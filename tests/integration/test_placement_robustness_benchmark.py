"""The benchmark of placement where its weights were not chosen, on a little traffic."""

import json
import subprocess
import sys
from pathlib import Path

from atomesh.testing.conversation_trace import write_conversation_trace

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "placement_robustness.py"
COARSE = ("--seeds", "0", "1", "--resolution", "0.2", "--made-up-requests", "150")


def run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, BENCHMARK, *arguments], capture_output=True, text=True, check=False
    )


def test_each_place_has_the_loads_of_all_and_a_verdict(tmp_path: Path) -> None:
    page = tmp_path / "results.md"

    answer = run(*COARSE, "--only", "chats", "--no-choice", "--json", "--write", page)

    document = json.loads(answer.stdout)
    [chats] = document["places"]
    assert list(chats["loads"]) == ["kv_aware", "cache_aware", "least_work", "ideal_shared_cache"]
    assert {len(found) for found in chats["loads"].values()} == {2}
    assert answer.returncode == ("behind" in chats["verdicts"].values()), answer.stderr
    assert document["weights"] == []
    assert "| chats, made up |" in page.read_text()


def test_weights_are_compared_on_the_first_half_alone(tmp_path: Path) -> None:
    trace = tmp_path / "conversations.jsonl"
    write_conversation_trace(trace, 160)

    answer = run(*COARSE, "--trace", trace, "--only", "nowhere", "--load", "0.5", "--json")

    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["places"] == []
    assert [one["weights"]["waste"] for one in document["weights"]] == [0.0, 1.0, 2.0, 4.0, 4.0, 8.0]
    assert all(one["ttft_mean_s"] > 0.0 for one in document["weights"])
