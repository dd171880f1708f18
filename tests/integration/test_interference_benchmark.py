"""The benchmark itself, at a size that says nothing but whether it runs and counts right."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from atomesh.testing.tiny_model import write_tiny_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "interference.py"
SIZES = shlex.split(
    "--streams 2 --prompts 300 200 --answer 3 --idle 0.2 --busy 0.2 --rounds 1 --shapes 1+1 1x256 "
    "--flag=--kv-memory=64MiB --flag=--threads=1 --json"
)


def test_shapes_are_measured_in_turn_and_the_page_gets_its_section_and_plot(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=8192)
    page = tmp_path / "docs" / "results.md"

    done = subprocess.run(
        [sys.executable, SCRIPT, model, *SIZES, "--home", tmp_path / "home", "--write", page],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["setting"]["model"], report["setting"]["dtype"]) == ("tiny", "float32")
    assert [(shape, found["serving_paths"]) for shape, found in report["shapes"].items()] == [
        ("1+1", {"prefill-decode": 2}),
        ("1x256", {"unified": 2}),
    ]
    for shape in report["shapes"].values():
        assert 0 < shape["idle_p50_s"] <= shape["idle_p99_s"]
        assert 0 < shape["reading_p50_s"] <= shape["reading_p99_s"] <= shape["reading_max_s"]
        assert 0 < shape["ttft_beside_s"] <= shape["ttft_beside_max_s"]
        assert len(shape["rounds"]) == 1
    text = page.read_text()
    assert "| 1 prefill + 1 decode |" in text
    assert "2 of 2 long prompts went from prefill to decode." in text
    assert "](interference.svg)" in text
    panels = ET.parse(page.parent / "interference.svg").getroot()  # noqa: S314  our own
    assert len(panels.findall("{http://www.w3.org/2000/svg}g")) == 2
