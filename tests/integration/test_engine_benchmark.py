"""The benchmark itself, at a size that says nothing but whether it runs and counts right."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.tiny_model import write_tiny_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = shlex.split(
    "--batches 1 16 --prompts 40 --context 8 --steps 3 --rounds 1 --read-mib 1 --matrix-size 32"
)


def run(model: Path, *options: str) -> str:
    answer = subprocess.run(
        [sys.executable, BENCHMARKS / "engine.py", model, *SIZES, *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def report(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(model, "--dtype", "float32", "--json"))
    return found


def test_both_contestants_are_measured_at_every_size(report: dict[str, Any]) -> None:
    assert [speed["batch"] for speed in report["decode"]] == [1, 16]
    assert [speed["tokens"] for speed in report["prefill"]] == [40]
    for speed in (*report["decode"], *report["prefill"]):
        ours, peer = speed["tokens_s"]
        assert ours == "ATOMesh"
        assert peer.startswith("transformers ")
        assert all(rate > 0 for rate in speed["tokens_s"].values())


def test_shares_are_what_the_rates_come_to(report: dict[str, Any]) -> None:
    vocab, hidden, layers = 384, 64, 2
    matrices = layers * (hidden * (64 + 2 * 32 + 64) + 3 * hidden * 128)
    norms = (2 * layers + 1) * hidden
    read = 4 * (matrices + norms + vocab * hidden) + 9.5 * 4 * 2 * layers * 32  # weights, and KV at mid-run
    decode = report["decode"][0]
    rate = read * decode["tokens_s"]["ATOMesh"]
    assert decode["read_share"] == pytest.approx(rate / report["limits"]["read_bytes"])
    flops = 2 * matrices * 40 + 4 * layers * 64 * 40 * 41 / 2 + 2 * vocab * hidden
    prefill = report["prefill"][0]
    rate = flops * prefill["tokens_s"]["ATOMesh"] / 40
    assert prefill["dtype_share"] == pytest.approx(rate / report["limits"]["dtype_flops"])
    assert prefill["bf16_share"] == pytest.approx(rate / report["limits"]["bf16_flops"])


def test_a_decode_step_is_taken_apart(report: dict[str, Any]) -> None:
    assert [step["batch"] for step in report["anatomy"]] == [1, 16]
    for step in report["anatomy"]:
        assert 0 < step["products_s"] + step["attention_s"] < step["whole_s"]
        assert 0 < report["outside_by_batch"][str(step["batch"])] < 1
    one, sixteen = (speed["tokens_s"]["ATOMesh"] for speed in report["decode"])
    assert report["batch_16_over_1"] == pytest.approx(sixteen / one)


def test_its_section_of_the_page_is_replaced_and_the_rest_stays(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nbefore\n")
    run(model, "--alone", "--write", str(page))
    page.write_text(page.read_text().replace("| batch 16 |", "| batch 99 |") + "\nafter\n")
    run(model, "--alone", "--write", str(page))
    text = page.read_text()
    assert text.startswith("# Results\n\nbefore\n")
    assert text.endswith("-->\n\nafter\n")
    assert text.count("## The engine") == 1
    assert text.count("| batch 16 |") == 1
    assert "batch 99" not in text
