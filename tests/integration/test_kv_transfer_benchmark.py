"""The benchmark itself, at a size that says nothing but whether it runs and counts right."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kv_transfer.py"
SIZES = shlex.split(
    "--rounds 2 --sizes 0.016 0.2 --block-bytes 16384 --chunks 3 --chunk-blocks 2 --compute-s 0.001"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs") / "results.md"


@pytest.fixture(scope="module")
def report(page: Path) -> dict[str, Any]:
    answer = subprocess.run(
        [sys.executable, BENCHMARK, *SIZES, "--json", "--write", page],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_every_contestant_moves_every_size(report: dict[str, Any]) -> None:
    assert [(speed["blocks"], speed["size"]) for speed in report["speeds"]] == [(1, 16384), (12, 12 * 16384)]
    for speed, shares in zip(report["speeds"], report["share_of_memcpy"], strict=True):
        assert list(speed["seconds"]) == ["memcpy", "shm", "tcp"]
        assert all(seconds > 0 for seconds in speed["seconds"].values())
        for name in ("shm", "tcp"):
            assert shares[name] == pytest.approx(speed["seconds"]["memcpy"] / speed["seconds"][name])


def test_what_a_transfer_adds_is_measured_both_ways(report: dict[str, Any]) -> None:
    assert [delay["transport"] for delay in report["delays"]] == ["shm", "tcp"]
    for delay in report["delays"]:
        assert (delay["chunks"], delay["chunk_bytes"]) == (3, 2 * 16384)
        assert min(delay["chunkwise_s"], delay["whole_s"], delay["last_chunk_s"]) > 0


def test_the_results_page_says_the_same(report: dict[str, Any], page: Path) -> None:
    (small, _), text = report["speeds"], page.read_text()
    assert f"Commit {report['commit']}" in text
    assert f"| 1 block, 0.0 MB | {small['size'] / small['seconds']['memcpy'] / 1e9:.2f} |" in text
