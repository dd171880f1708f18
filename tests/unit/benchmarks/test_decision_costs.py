"""The costs of knowing and of deciding, measured on little and put into words."""

import sys
from pathlib import Path

import kv_index
import placement_decision
import pytest
from machine import describe_machine


def run(program: object, page: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["program", *words, "--write", str(page)])
    program.main()  # type: ignore[attr-defined]
    return page.read_text()


def test_a_decision_s_cost_is_written_for_each_policy_and_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_decision, "LIMIT_S", 60.0)
    words = ("--workers", "4", "--decisions", "3", "--policies", "kv_aware", "random")
    text = run(placement_decision, tmp_path / "page.md", monkeypatch, *words)

    rows = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith(("| kv_", "| random"))]
    pools = ("unified", "prefill and decode")
    assert rows == [[f"| {policy}", pool] for policy in ("kv_aware", "random") for pool in pools]
    assert "4 workers" in text
    assert "kept by all" in text


def test_a_decision_that_is_too_slow_is_named_and_ends_the_program() -> None:
    costs = [
        placement_decision.Cost("random", "unified", 1e-4, 0.9e-3),
        placement_decision.Cost("session", "unified", 1e-4, 1e-3),
    ]
    report = placement_decision.Report(describe_machine(), "c", 1, 1, costs)

    assert [one.policy for one in report.too_slow] == ["session"]
    assert "not kept by session (unified)" in report.as_markdown()


def test_the_index_s_costs_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_index, "LIMIT_S", 60.0)
    words = ("--workers", "4", "--blocks", "64", "--prompt-blocks", "8", "--repeats", "4")
    text = run(kv_index, tmp_path / "page.md", monkeypatch, *words)

    assert "64 blocks of 4 workers" in text
    assert text.count("\n| look-up") == 2
