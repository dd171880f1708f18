"""FAULTS C2, C5, C6: whoever leaves, or asks for too much, leaves no block and no request behind."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench, pd_bench
from atomesh.testing.served_process import wait_for

CONTEXT = 1024


def counts(bench: PDBench) -> list[tuple[dict[str, int], bool, int]]:
    """Each worker's owners of blocks, whether all others are free or cached, and its legs."""
    legs = {worker["id"]: worker["in_flight"] for worker in bench.workers()}
    return [
        (one["owners"], one["states"]["free"] + one["states"]["cached"] == one["total"], legs[one["id"]])
        for one in bench.kv()["workers"]
    ]


def test_c2_five_hundred_aborts_in_every_phase(bench: PDBench) -> None:
    rng = random.Random(5)
    leavers = [
        (rng.uniform(0.0, 0.25), fresh_prompt(rng.randrange(1, 700)), rng.choice([1, 1, 3]))
        for _ in range(500)
    ]

    def leave(leaver: tuple[float, list[int], int]) -> None:
        seconds, prompt, n = leaver
        bench.client.leave_after(seconds, prompt, max_tokens=300, n=n, temperature=1.0, ignore_eos=True)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(leave, leavers))
    assert wait_for(bench.is_idle) < 15.0
    assert counts(bench) == [({}, True, 0)] * len(bench.workers())
    assert bench.kv()["open_tickets"] == 0


def test_c5_what_can_never_fit_is_refused_and_what_just_fits_runs(bench: PDBench, reference: PDBench) -> None:
    other = bench.client.stream([9, 8, 7], max_tokens=100, ignore_eos=True)
    other.next_tokens()
    refused = bench.client.complete(fresh_prompt(CONTEXT))
    assert refused.status == 400
    assert f"maximum context length is {CONTEXT} tokens" in refused.message
    prompt = fresh_prompt(CONTEXT - 1)
    answer = bench.client.complete(prompt, max_tokens=5)
    assert answer == reference.client.complete(prompt, max_tokens=5)
    assert (answer.completion_tokens, answer.choices[0].finish_reason) == (1, "length")
    assert other.finish().completion_tokens == 100


@pytest.fixture
def cramped(server: PDBench, model: Path, tmp_path: Path) -> Iterator[PDBench]:
    """The same shape with pools for two contexts."""
    with pd_bench(model, tmp_path, server.shape, kv_memory="1MiB") as bench:
        yield bench


def test_c6_fifty_long_requests_in_pools_for_two(cramped: PDBench, reference: PDBench) -> None:
    assert {worker["load"]["total_blocks"] for worker in cramped.workers()} == {64}
    prompts = [fresh_prompt(400 + 7 * index) for index in range(50)]
    fields = {"max_tokens": 40, "ignore_eos": True}
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda prompt: cramped.client.complete(prompt, **fields), prompts))
    assert answers == [reference.client.complete(prompt, **fields) for prompt in prompts]
    assert {(answer.status, answer.completion_tokens) for answer in answers} == {(200, 40)}
