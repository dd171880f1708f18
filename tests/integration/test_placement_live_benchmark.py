"""The live benchmark of placement, on a small trace: everything is answered, beside what is simulated."""

import json
import subprocess
import sys
from pathlib import Path

from atomesh.testing.conversation_trace import write_conversation_trace

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "placement_live.py"


def test_live_and_simulated_find_the_same_caches(tmp_path: Path) -> None:
    trace, page = tmp_path / "conversations.jsonl", tmp_path / "results.md"
    write_conversation_trace(trace, 60)
    flags = ["--trace", trace, "--requests", "60", "--workers", "2", "--time-scale", "40", "--load", "0.5"]
    policies = ["--policies", "kv_aware", "round_robin"]

    answer = subprocess.run(
        [sys.executable, BENCHMARK, *flags, *policies, "--json", "--write", page],
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr
    kv_aware, round_robin = json.loads(answer.stdout)["policies"]
    for one in (kv_aware, round_robin):
        assert one["live"]["num_requests"] == one["simulated"]["num_requests"] == 60
        assert one["live"]["ttft_mean_s"] > 0.8 * one["simulated"]["ttft_mean_s"] > 0.0
    assert kv_aware["live"]["hit_rate"] > round_robin["live"]["hit_rate"] > 0.1
    assert kv_aware["simulated"]["hit_rate"] > round_robin["simulated"]["hit_rate"] > 0.1
    assert "| `kv_aware` |" in page.read_text()
