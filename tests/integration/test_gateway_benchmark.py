"""The benchmarks of gateways themselves, with ours alone, too small to say anything."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.conversation_trace import write_conversation_trace
from atomesh.testing.tiny_model import write_tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GATEWAY = shlex.split(
    "--contestants direct 'ATOMesh, openai' 'ATOMesh, vllm' 'ATOMesh, atom' --rounds 1 --levels 1 3 "
    "--waves 1 --requests 8 --clients 2 --whole-clients 2 --short-streams 2 --tokens 5 --prompts 3 "
    "--prompt-words 8"
)
ROUTING = shlex.split(
    "--contestants 'ATOMesh, least_work' 'ATOMesh, kv_aware, events' --requests 30 --seconds 1 --engines 2 "
    "--blocks 500 --block-words 4 --load 0.5"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def run(name: str, *arguments: str | Path) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_every_way_of_ours_answers_and_is_counted(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    document = run("gateway.py", "--model", model, *GATEWAY, "--write", page)

    names = ["direct", "ATOMesh, openai", "ATOMesh, vllm", "ATOMesh, atom"]
    assert [one["name"] for one in document["found"]] == names
    for one in document["found"]:
        assert one["failed"] == []
        for level, streams in (("1", 2), ("3", 3)):
            assert len(one["levels"][level]["durations"]) == streams
            assert min(one["levels"][level]["ttfts"]) > 0
        assert (one["single_s"][0] > 0) == (one["name"] != "direct")
        assert (one["levels"]["3"]["cpu_s"][0] > 0) == (one["name"] != "direct")
    assert document["added_ttft_s"]["direct"] == {
        "1": {"p50": 0.0, "p99": 0.0},
        "3": {"p50": 0.0, "p99": 0.0},
    }
    assert f"Commit {document['setting']['commit']}" in page.read_text()


def test_ours_routes_the_trace_and_engines_count_what_was_cached(model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "conversations.jsonl"
    write_conversation_trace(trace, 40)
    document = run("routing.py", "--model", model, "--trace", trace, *ROUTING)

    prompt_tokens = {sum(one["prompt_tokens"] for one in run["engines"]) for run in document["found"]}
    assert prompt_tokens == {round(30 * document["setting"]["mean_tokens"])}
    for found in document["found"]:
        assert len(found["ttfts"]) == sum(len(one["ttfts"]) for one in found["engines"]) == 30
        assert 0 < found["hit_rate"] <= document["setting"]["ideal"]
