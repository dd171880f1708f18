"""FAULTS C10, C12: a server that is not there yet, and workers and servers that go in good order."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import ONE_AND_ONE, TWO_AND_TWO, PDBench, Shape, pd_bench
from atomesh.testing.served_process import Answer, served_process, wait_for, wait_ready

RESTART_S = 60.0  # imports torch on a busy machine
FIELDS = {"max_tokens": 30, "ignore_eos": True}


def retry_after(answer: Answer) -> int:
    return int({name.lower(): value for name, value in answer.headers.items()}["retry-after"])


@pytest.mark.parametrize("shape", [ONE_AND_ONE, TWO_AND_TWO], ids=lambda shape: shape.name)
def test_c10_from_the_first_instant_it_is_503_until_it_is_ready(
    model: Path, tmp_path: Path, shape: Shape
) -> None:
    statuses: list[int] = []
    with served_process(model, tmp_path, *shape.flags()) as served:

        def is_served() -> bool:
            began = time.monotonic()
            try:
                answer = served.complete("Hi")
            except OSError:  # nobody listens yet
                assert served.process.poll() is None, served.process.communicate()
                return False
            assert time.monotonic() - began < 2.0
            statuses.append(answer.status)
            if answer.status == 503:
                assert 1 <= retry_after(answer) <= 120
            return answer.status == 200

        wait_for(is_served, RESTART_S)
        assert statuses == [503] * (len(statuses) - 1) + [200]
        assert len(statuses) > 1
        wait_ready(served)
        bench = PDBench(served, shape, tmp_path)
        bench.settle(RESTART_S)
        bench.begin()
        bench.check()


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["drain", "SIGTERM"])
def test_c12_a_worker_goes_under_load_and_no_request_fails(
    pairs: PDBench, reference: PDBench, role: str, how: str
) -> None:
    prompts = [fresh_prompt(200) for _ in range(24)]
    wanted = [reference.client.complete(prompt, **FIELDS) for prompt in prompts]
    pairs.arm(role, "step_delay", 60, 0.02)
    leaver = pairs.workers(role)[0]
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(pairs.client.complete, prompt, **FIELDS) for prompt in prompts]
        wait(asked, return_when="FIRST_COMPLETED")
        assert not all(future.done() for future in asked)
        if how == "SIGTERM":
            pairs.end(leaver, signal.SIGTERM)
        else:
            assert pairs.admin("DELETE", f"/workers/{leaver['id']}?drain=true").status == 200
        answers = [future.result() for future in asked]
    assert answers == wanted
    assert {answer.status for answer in answers} == {200}
    if how == "drain":
        wait_for(lambda: leaver["id"] not in {worker["id"] for worker in pairs.workers()})
        assert pairs.admin("POST", "/workers", {"address": leaver["address"]}).status == 200


def test_c12_sigterm_of_the_whole_lets_answers_finish(
    model: Path, tmp_path: Path, reference: PDBench
) -> None:
    prompts = [fresh_prompt(300) for _ in range(4)]
    fields = {"max_tokens": 40, "ignore_eos": True}
    wanted = [reference.client.complete(prompt, **fields) for prompt in prompts]
    with pd_bench(model, tmp_path, ONE_AND_ONE) as bench:
        bench.arm("decode", "step_delay", 40, 0.02)
        streams = [bench.client.stream(prompt, **fields) for prompt in prompts]
        assert [len(stream.next_tokens()) for stream in streams] == [1] * 4
        bench.is_given_up = True
        bench.served.process.send_signal(signal.SIGTERM)
        answers = [stream.finish() for stream in streams]
        assert bench.served.process.wait(30) == 0
    assert answers == wanted
    assert {(answer.status, answer.ended_well) for answer in answers} == {(200, True)}
    assert bench.client.improper == []
