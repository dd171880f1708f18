"""FAULTS C7, C8: workers and gateways that are killed or frozen, with one worker of each role and with two.

Another worker is always there, be it of the other role: an answer that has not begun is asked for once more,
one that has begun goes on, and both are U's. Where there is none it is 503, and Retry-After says when.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import ONE_AND_ONE, TWO_AND_TWO, PDBench, pd_bench
from atomesh.testing.served_process import wait_for

RESTART_S = 60.0  # imports torch on a busy machine
LOST_S = 3.0
BOUND_S = 2.0  # for what is known at once, on a busy machine
LONG = {"max_tokens": 300, "ignore_eos": True}
SHORT = {"max_tokens": 16, "ignore_eos": True}


@pytest.fixture(scope="module")
def strict(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    """No worker may do both."""
    flags = ["--require-disaggregation"]
    with pd_bench(model, tmp_path_factory.mktemp("home"), ONE_AND_ONE, flags) as bench:
        yield bench


@pytest.fixture(scope="module")
def strict_pairs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    flags = ["--require-disaggregation"]
    with pd_bench(model, tmp_path_factory.mktemp("home"), TWO_AND_TWO, flags) as bench:
        yield bench


def incarnations(bench: PDBench) -> dict[str, str]:
    return {worker["id"]: worker["incarnation"] for worker in bench.workers()}


def holder(bench: PDBench, role: str) -> dict[str, Any]:
    """The worker of this role that has the only request there is."""
    found: list[dict[str, Any]] = []

    def is_found() -> bool:
        found[:] = [one for one in bench.workers(role if bench.shape.is_apart else None) if one["in_flight"]]
        return len(found) == 1

    wait_for(is_found)
    return found[0]


def is_computing(bench: PDBench, role: str) -> bool:
    """A worker says so with a heartbeat from within a step, or between two steps of a request."""
    loads = [worker["load"] for worker in bench.workers(role)]
    return any(load["step_s"] > 0 or load["running"] > 0 for load in loads)


def asked_while_prefill_computes(
    bench: PDBench, threads: ThreadPoolExecutor, length: int = 900
) -> tuple[list[int], "Future[Outcome]"]:
    """A request whose prompt takes a fifth of a second a chunk, and is being computed."""
    bench.arm("prefill", "step_delay", 20, 0.2)
    prompt = fresh_prompt(length)
    asked = threads.submit(bench.client.complete, prompt, **SHORT)
    wait_for(lambda: is_computing(bench, "prefill") or asked.done())
    assert not asked.done(), asked.result()
    return prompt, asked


def is_refused_soon(answer: Outcome) -> bool:
    """The right 503."""
    return answer.status == 503 and 1 <= int(answer.headers["retry-after"]) <= 120 and not answer.ended_well


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c7_a_death_before_the_first_byte_costs_a_retry(
    doomed: PDBench, reference: PDBench, role: str
) -> None:
    """Prefill's: the whole request is asked for again. Decode's: the answer has a first token, and moves."""
    retries, moves = doomed.metric("atomesh_retries_total"), doomed.metric("atomesh_migrations_total")
    with ThreadPoolExecutor(1) as threads:
        prompt, asked = asked_while_prefill_computes(doomed, threads)
        doomed.end(holder(doomed, role))
        answer = asked.result()
    assert answer == reference.client.complete(prompt, **SHORT)
    assert (answer.status, answer.completion_tokens) == (200, 16)
    retries = doomed.metric("atomesh_retries_total") - retries
    moves = doomed.metric("atomesh_migrations_total") - moves
    assert (retries, moves) == ((1, 0) if role == "prefill" else (0, 1))


def test_c7_prefill_dies_in_the_transfer(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(900)
    doomed.arm("prefill", "kv_delay_push", 20, 5.0)
    stream = doomed.client.stream(prompt, **SHORT)
    assert len(stream.next_tokens()) == 1
    doomed.end(holder(doomed, "prefill"))
    answer = stream.finish()
    assert answer == reference.client.complete(prompt, **SHORT)
    assert (answer.status, answer.ended_well, answer.completion_tokens) == (200, True, 16)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c7_a_death_after_the_first_byte_is_not_seen_in_the_answer(
    doomed: PDBench, reference: PDBench, role: str
) -> None:
    prompt = fresh_prompt(100)
    doomed.arm("decode", "step_delay", 300, 0.02)
    moves = doomed.metric("atomesh_migrations_total")
    stream = doomed.client.stream(prompt, **LONG)
    first = [token for _ in range(5) for token in stream.next_tokens()]
    assert len(first) == 5
    dying = holder(doomed, "decode") if role == "decode" else doomed.workers("prefill")[0]
    doomed.end(dying)
    answer = stream.finish()
    assert answer == reference.client.complete(prompt, **LONG)
    assert (answer.status, answer.ended_well, answer.completion_tokens) == (200, True, 300)
    assert doomed.metric("atomesh_migrations_total") - moves == (1 if role == "decode" else 0)


def test_c7_where_nobody_is_left_it_is_503_before_the_first_byte(reference: PDBench) -> None:
    reference.arm("unified", "step_delay", 20, 0.2)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(reference.client.complete, fresh_prompt(900), **SHORT)
        wait_for(lambda: is_computing(reference, "unified"))
        reference.end(holder(reference, "unified"))
        began = time.monotonic()
        answer = asked.result()
    assert time.monotonic() - began < BOUND_S
    assert is_refused_soon(answer)
    assert "lost before it answered" in answer.message


def test_c7_and_an_error_frame_after_it(reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    wanted = reference.client.complete(prompt, **LONG)
    reference.arm("unified", "step_delay", 300, 0.02)
    stream = reference.client.stream(prompt, **LONG)
    first = [token for _ in range(5) for token in stream.next_tokens()]
    assert len(first) == 5
    reference.end(holder(reference, "unified"))
    began = time.monotonic()
    answer = stream.finish()
    assert time.monotonic() - began < BOUND_S
    assert (answer.status, answer.ended_well) == (503, False)
    assert 5 <= len(answer.tokens) < 300
    assert answer.tokens == wanted.tokens[: len(answer.tokens)]


def test_c7_both_of_two_die_and_it_is_an_error(apart: PDBench) -> None:
    """Two have died of it, for all that one can know: it touches no third."""
    with ThreadPoolExecutor(1) as threads:
        _, asked = asked_while_prefill_computes(apart, threads)
        apart.arm("decode", "step_delay", 20, 0.2)
        apart.end(apart.worker("prefill"))
        wait_for(lambda: is_computing(apart, "decode"))
        apart.end(apart.worker("decode"))
        answer = asked.result()
    assert (answer.status, answer.ended_well) == (500, False)
    assert "2 workers were lost" in answer.message


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c7_no_worker_goes_on_alone_where_it_must_not(strict: PDBench, role: str) -> None:
    """Decode's death is noticed by the gateway before prefill has the first token, or after it."""
    with ThreadPoolExecutor(1) as threads:
        _, asked = asked_while_prefill_computes(strict, threads, 500)
        strict.kill(role)
        answer = asked.result()
    assert is_refused_soon(answer)
    assert "no other can go on" in answer.message


def test_c7_nor_after_the_first_byte(strict: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    strict.arm("decode", "step_delay", 300, 0.02)
    stream = strict.client.stream(prompt, **LONG)
    first = [token for _ in range(5) for token in stream.next_tokens()]
    assert len(first) == 5
    strict.kill("decode")
    answer = stream.finish()
    assert (answer.status, answer.ended_well) == (503, False)
    assert 5 <= len(answer.tokens) < 300
    assert answer.tokens == reference.client.complete(prompt, **LONG).tokens[: len(answer.tokens)]


def test_c7_another_pair_goes_on_where_two_are_required(strict_pairs: PDBench, reference: PDBench) -> None:
    """By a hand-off of its own: no worker computes a prompt and decodes."""
    prompt = fresh_prompt(400)
    strict_pairs.arm("decode", "step_delay", 100, 0.02)
    stream = strict_pairs.client.stream(prompt, **{**LONG, "max_tokens": 100})
    first = [token for _ in range(5) for token in stream.next_tokens()]
    assert len(first) == 5
    computed = [worker["load"]["prompt_tokens"] for worker in strict_pairs.workers("decode")]
    strict_pairs.end(holder(strict_pairs, "decode"))
    answer = stream.finish()
    assert answer == reference.client.complete(prompt, **{**LONG, "max_tokens": 100})
    assert (answer.status, answer.ended_well, answer.completion_tokens) == (200, True, 100)
    assert computed == [0, 0]
    assert {worker["load"]["prompt_tokens"] for worker in strict_pairs.workers("decode")} == {0}


def test_c7_the_gateway_dies(doomed: PDBench) -> None:
    doomed.arm("decode", "step_delay", 300, 0.02)
    stream = doomed.client.stream(fresh_prompt(100), **LONG)
    first = [token for _ in range(5) for token in stream.next_tokens()]
    assert len(first) == 5
    before = incarnations(doomed)
    doomed.kill_gateway()
    answer = stream.finish()
    assert (answer.ended_well, answer.choices[0].finish_reason) == (False, None)
    assert len(doomed.client.improper) == 1  # cut, as it must be
    doomed.client.improper.clear()
    doomed.settle(RESTART_S)
    assert incarnations(doomed) == before


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c7_a_worker_that_is_restarted_is_used_within_seconds(apart: PDBench, role: str) -> None:
    before = apart.kill(role)

    def is_back() -> bool:
        now = {one["id"]: one for one in apart.workers()}[before["id"]]
        return bool(now["state"] == "ready" and now["incarnation"] != before["incarnation"])

    wait_for(is_back, RESTART_S)
    began = time.monotonic()
    answer = apart.client.complete(fresh_prompt(100), **SHORT)
    assert time.monotonic() - began < 5.0
    assert (answer.status, answer.path) == (200, "prefill-decode")


def silent_for(bench: PDBench, worker: dict[str, Any], seconds: float) -> None:
    """Until the gateway has had no word of the worker for so long."""
    wait_for(lambda: {one["id"]: one for one in bench.workers()}[worker["id"]]["silent_s"] > seconds)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_c8_a_frozen_worker_gets_nothing_new_and_holds_up_nobody(
    doomed: PDBench, reference: PDBench, role: str
) -> None:
    prompts = [fresh_prompt(50) for _ in range(4)]
    wanted = [reference.client.complete(prompt, **SHORT) for prompt in prompts]
    with doomed.frozen_worker(doomed.workers(role)[0]) as before:
        silent_for(doomed, before, 1.0)
        dispatched = before["dispatched"]
        for prompt, right in zip(prompts, wanted, strict=True):
            began = time.monotonic()
            answer = doomed.client.complete(prompt, **SHORT)
            assert time.monotonic() - began < 1.5
            assert answer == right
            others = len(doomed.workers(role)) - 1
            assert answer.path == ("prefill-decode" if others else "local-prefill")
        now = {one["id"]: one for one in doomed.workers()}[before["id"]]
        assert now["dispatched"] == dispatched
    doomed.settle()
    assert incarnations(doomed)[before["id"]] == before["incarnation"]
    prompt = fresh_prompt(50)
    answer = doomed.client.complete(prompt, **SHORT)
    assert answer == reference.client.complete(prompt, **SHORT)
    assert answer.path == "prefill-decode"


def test_c8_what_a_frozen_prefill_had_begun_moves_within_seconds(doomed: PDBench, reference: PDBench) -> None:
    with ThreadPoolExecutor(1) as threads:
        prompt, asked = asked_while_prefill_computes(doomed, threads)
        with doomed.frozen_worker(holder(doomed, "prefill")):
            began = time.monotonic()
            answer = asked.result()
            assert time.monotonic() - began < LOST_S + BOUND_S
    assert answer == reference.client.complete(prompt, **SHORT)
    assert (answer.status, answer.completion_tokens) == (200, 16)


def test_c8_what_a_frozen_decode_had_begun_moves_within_seconds(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    wanted = reference.client.complete(prompt, **SHORT)
    doomed.arm("decode", "step_delay", 300, 0.05)
    stream = doomed.client.stream(prompt, **SHORT)
    first = [token for _ in range(3) for token in stream.next_tokens()]
    assert len(first) == 3
    with doomed.frozen_worker(holder(doomed, "decode")):
        began = time.monotonic()
        answer = stream.finish()
        assert time.monotonic() - began < LOST_S + BOUND_S
    assert answer == wanted
    assert (answer.status, answer.ended_well, answer.completion_tokens) == (200, True, 16)


def test_c8_what_comes_while_the_only_worker_is_frozen_waits_and_is_then_refused(reference: PDBench) -> None:
    """It is not sent to a worker that may never answer, nor turned away while that may wake up."""
    [before] = reference.workers()
    with reference.frozen_worker(before):
        silent_for(reference, before, 1.0)
        began = time.monotonic()
        answer = reference.client.complete(fresh_prompt(50), **SHORT)
        assert time.monotonic() - began < LOST_S
        assert reference.workers()[0]["dispatched"] == before["dispatched"]
    assert is_refused_soon(answer)


def test_c8_what_waits_for_a_frozen_worker_is_served_when_it_wakes(reference: PDBench) -> None:
    prompts = [fresh_prompt(50) for _ in range(3)]
    wanted = [reference.client.complete(prompt, **SHORT) for prompt in prompts]
    [before] = reference.workers()
    with ThreadPoolExecutor(3) as threads, ExitStack() as frozen:
        frozen.enter_context(reference.frozen_worker(before))
        silent_for(reference, before, 1.0)
        asked = [threads.submit(reference.client.complete, prompt, **SHORT) for prompt in prompts]
        wait_for(lambda: reference.metric("atomesh_requests_in_flight") == 3)
        assert reference.workers()[0]["dispatched"] == before["dispatched"]
        frozen.close()
        answers = [future.result() for future in asked]
    assert answers == wanted
    assert {answer.status for answer in answers} == {200}
    assert reference.workers()[0]["incarnation"] == before["incarnation"]


def test_c8_who_leaves_while_waiting_costs_the_worker_nothing(reference: PDBench) -> None:
    [before] = reference.workers()
    with reference.frozen_worker(before):
        silent_for(reference, before, 1.0)
        reference.client.leave_after(0.1, fresh_prompt(50), **SHORT)
        wait_for(lambda: reference.metric("atomesh_requests_in_flight") == 0, BOUND_S)
    reference.settle()
    assert reference.workers()[0]["dispatched"] == before["dispatched"]
