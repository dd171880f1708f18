"""The benchmark itself, at a size that says nothing but whether it runs and counts right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atomesh.engine.kernels.library import load_kernels

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "attention.py"
SIZES = (
    "--batches",
    "decode 32 × 256",
    "--rounds",
    "1",
    "--layers",
    "1",
    "--read-mib",
    "1",
    "--threads",
    "1",
)


@pytest.mark.skipif(load_kernels() is None, reason="nothing to measure: no compiler, or no such processor")
def test_counts_what_is_read_and_computed() -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARK, *SIZES, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (timing,) = json.loads(done.stdout)["timings"]
    tokens = 32 * 256
    assert timing["bytes"] == tokens * 2 * 3 * 64 * 2
    assert timing["flops"] == 4 * tokens * 9 * 64
    assert timing["ours_s"] > 0
    assert timing["torch_s"] > 0
