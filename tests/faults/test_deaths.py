"""FAULTS C7, C8, C10, C12: workers and gateways that are killed, frozen, drained, or not there yet."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import ONE_AND_ONE, PDBench, Shape, pd_bench
from atomesh.testing.served_process import served_process, wait_for, wait_ready

RESTART_S = 60.0  # imports torch on a busy machine
LONG = {"max_tokens": 300, "ignore_eos": True}
SHORT = {"max_tokens": 16, "ignore_eos": True}


@pytest.fixture
def doomed(server: PDBench) -> Iterator[PDBench]:
    """A server that the test kills parts of."""
    yield server
    server.settle(RESTART_S)
    server.disarm()
    assert server.client.complete(fresh_prompt(10)).status == 200


def is_right_or_an_error(answer: Outcome, wanted: Outcome) -> bool:
    """With no second worker an error is an answer too; half an answer must be the beginning of U's."""
    if answer.status == 200:
        return answer == wanted
    had = answer.choices[0].token_ids if answer.choices else ()
    return 500 <= answer.status <= 504 and not answer.ended_well and had == wanted.tokens[: len(had)]


def test_c7_prefill_dies_while_it_computes(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(900)
    doomed.arm("prefill", "step_delay", 20, 0.2)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(doomed.client.complete, prompt, **SHORT)
        wait_for(lambda: doomed.worker("prefill")["load"]["step_s"] > 0)
        doomed.kill("prefill")
        assert is_right_or_an_error(asked.result(), reference.client.complete(prompt, **SHORT))


def test_c7_prefill_dies_in_the_transfer(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(900)
    doomed.arm("prefill", "kv_delay_push", 20, 5.0)
    stream = doomed.client.stream(prompt, **SHORT)
    stream.next_tokens()
    doomed.kill("prefill")
    assert stream.finish() == reference.client.complete(prompt, **SHORT)


def test_c7_prefill_dies_after_the_transfer(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    stream = doomed.client.stream(prompt, **LONG)
    for _ in range(5):
        stream.next_tokens()
    doomed.kill("prefill")
    assert stream.finish() == reference.client.complete(prompt, **LONG)


def test_c7_decode_dies_before_the_first_byte(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(900)
    doomed.arm("prefill", "step_delay", 20, 0.2)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(doomed.client.complete, prompt, **SHORT)
        wait_for(lambda: doomed.worker("prefill")["load"]["step_s"] > 0)
        doomed.kill("decode")
        assert is_right_or_an_error(asked.result(), reference.client.complete(prompt, **SHORT))


def test_c7_decode_dies_after_the_first_byte(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    doomed.arm("decode", "step_delay", 300, 0.02)
    stream = doomed.client.stream(prompt, **LONG)
    for _ in range(5):
        stream.next_tokens()
    doomed.kill("decode")
    assert is_right_or_an_error(stream.finish(), reference.client.complete(prompt, **LONG))


def test_c7_the_gateway_dies(doomed: PDBench) -> None:
    doomed.arm("decode", "step_delay", 300, 0.02)
    stream = doomed.client.stream(fresh_prompt(100), **LONG)
    for _ in range(5):
        stream.next_tokens()
    before = {worker["id"]: worker["incarnation"] for worker in doomed.workers()}
    os.kill(doomed.gateway_pid(), signal.SIGKILL)
    assert not stream.finish().ended_well
    doomed.settle(RESTART_S)
    assert {worker["id"]: worker["incarnation"] for worker in doomed.workers()} == before


def test_c8_a_frozen_worker_gets_nothing_new_and_holds_up_nobody(doomed: PDBench, reference: PDBench) -> None:
    with doomed.frozen("decode") as before:
        time.sleep(1.1)
        for _ in range(3):
            prompt = fresh_prompt(50)
            began = time.monotonic()
            answer = doomed.client.complete(prompt, **SHORT)
            assert time.monotonic() - began < 1.5
            assert answer == reference.client.complete(prompt, **SHORT)
            assert answer.path == "local-prefill"
    doomed.settle()
    assert doomed.worker("decode")["incarnation"] == before["incarnation"]
    prompt = fresh_prompt(50)
    assert doomed.client.complete(prompt, **SHORT) == reference.client.complete(prompt, **SHORT)


def test_c8_what_a_frozen_prefill_had_begun_moves_within_seconds(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(900)
    doomed.arm("prefill", "step_delay", 20, 0.3)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(doomed.client.complete, prompt, **SHORT)
        wait_for(lambda: doomed.worker("prefill")["load"]["step_s"] > 0)
        with doomed.frozen("prefill"):
            began = time.monotonic()
            answer = asked.result()
            assert time.monotonic() - began < 6.0
    assert is_right_or_an_error(answer, reference.client.complete(prompt, **SHORT))


def test_c8_what_a_frozen_decode_had_begun_moves_within_seconds(doomed: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    doomed.arm("decode", "step_delay", 300, 0.02)
    stream = doomed.client.stream(prompt, **LONG)
    for _ in range(5):
        stream.next_tokens()
    with doomed.frozen("decode"):
        began = time.monotonic()
        answer = stream.finish()
        assert time.monotonic() - began < 8.0
    assert is_right_or_an_error(answer, reference.client.complete(prompt, **LONG))


def test_c10_from_the_first_instant_it_is_503_until_it_is_ready(model: Path, tmp_path: Path) -> None:
    seen: set[int] = set()
    with served_process(model, tmp_path, *ONE_AND_ONE.flags()) as served:
        while 200 not in seen:
            try:
                began = time.monotonic()
                answer = served.complete("Hi")
            except OSError:
                assert served.process.poll() is None, served.process.communicate()
                time.sleep(0.02)
                continue
            assert time.monotonic() - began < 2.0
            seen.add(answer.status)
            if answer.status == 503:
                assert 1 <= int({k.lower(): v for k, v in answer.headers.items()}["retry-after"]) <= 120
        assert seen <= {200, 503}
        wait_ready(served)


@pytest.fixture(scope="module")
def pairs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PDBench]:
    """Two workers of each role."""
    with pd_bench(model, tmp_path_factory.mktemp("home"), Shape(prefill=2, decode=2)) as bench:
        yield bench


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["drain", "SIGTERM"])
def test_c12_a_worker_goes_under_load_and_no_request_fails(
    pairs: PDBench, reference: PDBench, role: str, how: str
) -> None:
    prompts = [fresh_prompt(200) for _ in range(24)]
    pairs.arm(role, "step_delay", 60, 0.02)
    with ThreadPoolExecutor(8) as threads:
        asked = [
            threads.submit(pairs.client.complete, prompt, max_tokens=30, ignore_eos=True)
            for prompt in prompts
        ]
        wait_for(lambda: any(future.done() for future in asked))
        leaver = pairs.workers(role)[0]
        if how == "SIGTERM":
            os.kill(leaver["pid"], signal.SIGTERM)
        else:
            assert pairs.admin("DELETE", f"/workers/{leaver['id']}?drain=true").status == 200
        answers = [future.result() for future in asked]
    wanted = [reference.client.complete(prompt, max_tokens=30, ignore_eos=True) for prompt in prompts]
    assert answers == wanted
    pairs.settle(RESTART_S)


def test_c12_sigterm_of_the_whole_lets_answers_finish(
    model: Path, tmp_path: Path, reference: PDBench
) -> None:
    prompts = [fresh_prompt(300) for _ in range(4)]
    with pd_bench(model, tmp_path, ONE_AND_ONE) as bench:
        bench.arm("decode", "step_delay", 40, 0.02)
        streams = [bench.client.stream(prompt, max_tokens=40, ignore_eos=True) for prompt in prompts]
        for stream in streams:
            stream.next_tokens()
        bench.served.process.send_signal(signal.SIGTERM)
        answers = [stream.finish() for stream in streams]
        assert bench.served.process.wait(30) == 0
    assert answers == [reference.client.complete(one, max_tokens=40, ignore_eos=True) for one in prompts]
