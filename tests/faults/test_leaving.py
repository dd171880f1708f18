"""FAULTS C1, C3, C9: whoever leaves or is late stops every leg at once."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import wait_for

CHUNK = 128


def prefill_is_idle(bench: PDBench) -> bool:
    load = bench.worker("prefill")["load"]
    return bool(
        load["running"] == load["waiting"] == load["reserved_blocks"] == load["quarantined_blocks"] == 0
        and load["free_blocks"] + load["cached_blocks"] == load["total_blocks"]
    )


def test_c1_who_leaves_between_the_legs_frees_prefill_at_once(apart: PDBench) -> None:
    """Decode is held in a step, so it grants nothing: prefill keeps the KV under its lease."""
    other = apart.client.stream([7, 8, 9], max_tokens=200, ignore_eos=True)
    for _ in range(3):
        other.next_tokens()
    apart.arm("decode", "step_delay", 1, 3.0)
    wait_for(lambda: apart.worker("decode")["load"]["step_s"] > 0)
    stream = apart.client.stream(fresh_prompt(600), max_tokens=50)
    assert len(stream.next_tokens()) == 1
    stream.close()
    assert wait_for(lambda: prefill_is_idle(apart)) < 1.0
    assert other.finish().completion_tokens == 200


def test_c3_a_hundred_clients_that_wait_a_fifth_of_a_second(bench: PDBench) -> None:
    """A step takes 50 ms, and a prompt eight: what is computed is what the steps until then could hold."""
    before = bench.worker("prefill")["load"]
    bench.arm("prefill", "step_delay", 10_000, 0.05)
    began = time.monotonic()
    with ThreadPoolExecutor(100) as threads:
        list(
            threads.map(
                lambda prompt: bench.client.leave_after(0.2, prompt), [fresh_prompt(1000) for _ in range(100)]
            )
        )
    left = time.monotonic()
    wait_for(bench.is_idle)
    assert time.monotonic() - left < 1.0
    computed = bench.worker("prefill")["load"]["prompt_tokens"] - before["prompt_tokens"]
    assert computed <= ((left - began) / 0.05 + 2) * CHUNK


@pytest.mark.parametrize("slow", ["prefill", "decode"])
@pytest.mark.parametrize("streamed", [False, True])
def test_c9_one_deadline_over_all_legs(bench: PDBench, slow: str, streamed: bool) -> None:
    assert_the_deadline_is_kept(bench, slow, streamed=streamed)


@pytest.mark.parametrize("slow", ["prefill", "decode"])
def test_c9_one_deadline_over_the_legs_of_several_pairs(pairs: PDBench, slow: str) -> None:
    assert_the_deadline_is_kept(pairs, slow, streamed=True)


def assert_the_deadline_is_kept(bench: PDBench, slow: str, *, streamed: bool) -> None:
    bench.arm(slow, "step_delay", 100, 0.4)
    ask = {"headers": {"x-request-timeout": "2"}, "max_tokens": 100, "ignore_eos": True}
    began = time.monotonic()
    prompt = fresh_prompt(1000 if slow == "prefill" else 20)
    answer = bench.client.stream(prompt, **ask).finish() if streamed else bench.client.complete(prompt, **ask)
    assert time.monotonic() - began == pytest.approx(2.0, abs=0.3)
    assert (answer.status, answer.ended_well) == (504, False)
    wait_for(bench.is_idle, 1.5)
