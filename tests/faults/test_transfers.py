"""FAULTS A2, A5, A6, A7, C4: a transfer that goes wrong costs time or a typed error, never the answer."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import ONE_AND_ONE, PDBench, pd_bench
from atomesh.testing.served_process import wait_for

FIELDS = {"max_tokens": 16, "ignore_eos": True}
# That a push or a commit is lost is known after a fifteenth of the lease without progress: 2 s.
BROKEN = {"kv_drop_commit": 2, "kv_partial_push": 1, "kv_drop_push": 1}  # a commit is said twice


def failed_transfers(bench: PDBench) -> int:
    """Hand-offs that ended, on decode's side, without their KV."""
    outcomes = bench.worker("decode")["load"]["kv_transfers"]
    return sum(number for outcome, number in outcomes.items() if outcome != "received_committed")


def break_each(bench: PDBench, prompts: list[list[int]]) -> list[Outcome]:
    """An answer for each of BROKEN, whose own transfer went wrong in that way."""
    streams = []
    for (point, count), prompt in zip(BROKEN.items(), prompts, strict=True):
        bench.arm("prefill", point, count)
        streams.append(bench.client.stream(prompt, **FIELDS))
        streams[-1].next_tokens()
    return [stream.finish() for stream in streams]


def test_a2_what_did_not_arrive_is_recomputed_and_counted(apart: PDBench, reference: PDBench) -> None:
    before = failed_transfers(apart)
    prompts = [fresh_prompt(600) for _ in BROKEN]
    answers = break_each(apart, prompts)
    assert answers == [reference.client.complete(prompt, **FIELDS) for prompt in prompts]
    assert {answer.status for answer in answers} == {200}
    wait_for(lambda: failed_transfers(apart) - before == len(BROKEN), 5.0)


@pytest.mark.parametrize("point", ["kv_drop_push", "kv_drop_commit"])
def test_a2_a_loss_is_noticed_within_seconds(apart: PDBench, reference: PDBench, point: str) -> None:
    prompt = fresh_prompt(600)
    wanted = reference.client.complete(prompt, **FIELDS)
    apart.arm("prefill", point, BROKEN[point])
    began = time.monotonic()
    answer = apart.client.complete(prompt, **FIELDS)
    assert time.monotonic() - began < 4.0
    assert (answer, answer.path) == (wanted, "recomputed")


def test_a2_late_blocks_are_waited_for(apart: PDBench, reference: PDBench) -> None:
    apart.arm("prefill", "kv_delay_push", 20, 0.3)
    prompt = fresh_prompt(700)
    answer = apart.client.complete(prompt, **FIELDS)
    assert answer == reference.client.complete(prompt, **FIELDS)
    assert (answer.status, answer.path) == (200, "prefill-decode")


def test_a6_a_flipped_bit_is_never_another_answer(apart: PDBench, reference: PDBench) -> None:
    if apart.shape == ONE_AND_ONE:
        pytest.skip("shared memory has no wire")
    for _ in range(3):
        before = failed_transfers(apart)
        apart.arm("prefill", "kv_flip_bit", 1)
        prompt = fresh_prompt(500)
        assert apart.client.complete(prompt, **FIELDS) == reference.client.complete(prompt, **FIELDS)
        wait_for(lambda known=before: failed_transfers(apart) > known)


def test_c4_a_full_decode_pulls_when_it_has_room(apart: PDBench, reference: PDBench) -> None:
    apart.arm("decode", "kv_refuse_reserve", 1)
    prompt = fresh_prompt(600)
    answer = apart.client.complete(prompt, **FIELDS)
    assert answer == reference.client.complete(prompt, **FIELDS)
    assert (answer.status, answer.path) == (200, "prefill-decode")
    apart.arm("decode", "kv_refuse_reserve", 8)
    prompts = [fresh_prompt(300) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda one: apart.client.complete(one, **FIELDS), prompts))
    assert answers == [reference.client.complete(one, **FIELDS) for one in prompts]
    assert {(answer.status, answer.path) for answer in answers} == {(200, "prefill-decode")}


def test_a5_a_failing_prefill_is_the_clients_error_and_decode_gets_its_blocks_back(apart: PDBench) -> None:
    """A later chunk fails: by then decode has reserved, and said so with its next heartbeat."""
    apart.arm("prefill", "step_delay", 8, 0.3)
    prompt = fresh_prompt(900)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(apart.client.complete, prompt)
        wait_for(lambda: apart.worker("decode")["load"]["reserved_blocks"] > 0)
        apart.arm("prefill", "step_fail", 2)
        began = time.monotonic()
        answer = asked.result()
    assert time.monotonic() - began < 2.0
    assert answer.status == 500
    wait_for(apart.is_idle, 2.0)


@pytest.fixture(scope="module")
def strict(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    """A server that recomputes nothing and serves nothing on one worker alone."""
    flags = ["--on-transfer-failure=fail", "--require-disaggregation"]
    with pd_bench(model, tmp_path_factory.mktemp("home"), ONE_AND_ONE, flags) as bench:
        yield bench


@pytest.mark.parametrize(("point", "count"), [("kv_partial_push", 1), ("kv_drop_commit", 2)])
def test_a2_or_a_typed_error_where_policy_asks_for_it(
    strict: PDBench, reference: PDBench, point: str, count: int
) -> None:
    before = failed_transfers(strict)
    prompt = fresh_prompt(600)
    strict.arm("prefill", point, count)
    answer = strict.client.stream(prompt, **FIELDS).finish()
    assert answer.status == 500
    assert "KV" in answer.message
    assert not answer.ended_well
    assert answer.tokens == reference.client.complete(prompt, **FIELDS).tokens[:1]
    wait_for(lambda: failed_transfers(strict) - before == 1, 5.0)


def test_a2_a_recomputed_answer_says_so(apart: PDBench) -> None:
    apart.arm("prefill", "kv_partial_push")
    assert apart.client.complete(fresh_prompt(600), **FIELDS).path == "recomputed"


def test_a7_without_a_pair_it_is_503(strict: PDBench) -> None:
    strict.kill("decode")
    wait_for(lambda: any(worker["state"] == "lost" for worker in strict.workers()))
    answer = strict.client.complete(fresh_prompt(10))
    assert answer.status == 503
    assert "no such pair" in answer.message
    assert 1 <= int(answer.headers["retry-after"]) <= 120


def test_a7_local_prefill_is_visible(apart: PDBench, reference: PDBench) -> None:
    before = apart.metric("atomesh_requests_served_total", path="local-prefill")
    prompt = fresh_prompt(100)
    assert apart.client.complete(prompt).path == "prefill-decode"
    apart.kill("prefill")
    wait_for(lambda: any(worker["state"] == "lost" for worker in apart.workers()))
    prompt = fresh_prompt(100)
    answer = apart.client.complete(prompt)
    assert answer == reference.client.complete(prompt)
    assert answer.path == "local-prefill"
    assert apart.metric("atomesh_requests_served_total", path="local-prefill") == before + 1
