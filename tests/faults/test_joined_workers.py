"""FAULTS C7, C12 and D2 with workers that came by themselves, each a process, over TCP.

They are known to a gateway that was told of nobody, also after it was started again; who has not the secret
is turned away and counted; who dies or leaves is let go. And what kills its worker touches two of them.
"""

import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from atomesh.protocol.registration import LEASE_S, RENEW_S
from atomesh.testing.completion_client import Outcome, Stream
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.joining_cluster import Joining, joining_cluster
from atomesh.testing.pd_bench import PDBench
from atomesh.testing.served_process import command, free_port, wait_for

RESTART_S = 90.0
SHORT = {"max_tokens": 16, "ignore_eos": True}
LONG = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.9}
NUM_INNOCENT = 3


@pytest.fixture(scope="module")
def joining(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joining]:
    with joining_cluster(model, tmp_path_factory.mktemp("home"), 3) as made:
        yield made


@pytest.fixture
def bench(joining: Joining) -> PDBench:
    return joining.bench


def by_id(bench: PDBench) -> dict[str, dict[str, Any]]:
    return {worker["id"]: worker for worker in bench.workers()}


def park(bench: PDBench, *names: str) -> None:
    """These get nothing new; all others anything."""
    for name in by_id(bench):
        role = "parked" if name in names else "unified"
        assert bench.admin("POST", f"/workers/{name}/role", {"role": role}).status == 200


def wait_for_legs(bench: PDBench, name: str, count: int) -> None:
    wait_for(lambda: int(by_id(bench)[name]["in_flight"]) >= count)


def refusals(bench: PDBench, reason: str) -> float:
    return bench.metric("atomesh_worker_refusals_total", reason=reason)


def test_c7_a_gateway_started_again_knows_its_workers_within_seconds(
    bench: PDBench, reference: PDBench
) -> None:
    before = {name: worker["incarnation"] for name, worker in by_id(bench).items()}
    bench.kill_gateway()
    wait_for(bench.served.is_ready, RESTART_S)
    seconds = wait_for(lambda: len(bench.workers()) == 3, RESTART_S)
    assert seconds < RENEW_S + 3.0
    bench.settle()
    assert {name: worker["incarnation"] for name, worker in by_id(bench).items()} == before
    for name in before:
        park(bench, *(set(before) - {name}))
        prompt = fresh_prompt(100)
        assert bench.client.complete(prompt, **SHORT) == reference.client.complete(prompt, **SHORT)
        assert by_id(bench)[name]["dispatched"] == 1
    park(bench)


@pytest.mark.soak
def test_c12_a_worker_that_is_told_to_go_is_forgotten_and_may_come_again(
    bench: PDBench, reference: PDBench
) -> None:
    before = by_id(bench)["unified-1"]
    bench.end(before, signal.SIGTERM)
    wait_for(lambda: "unified-1" not in by_id(bench), RENEW_S)
    prompt = fresh_prompt(100)
    assert bench.client.complete(prompt, **SHORT) == reference.client.complete(prompt, **SHORT)
    wait_for(lambda: by_id(bench).get("unified-1", before)["state"] == "ready", RESTART_S)
    wait_for(lambda: by_id(bench).get("unified-1", before)["incarnation"] != before["incarnation"], RESTART_S)


def test_who_has_another_secret_is_turned_away_and_counted(joining: Joining, tmp_path: Path) -> None:
    bench, other = joining.bench, tmp_path / "other-secret"
    other.write_text("f" * 64)
    other.chmod(0o600)
    stranger = joining.start("stranger", f"--secret-file={other}")
    try:
        wait_for(lambda: refusals(bench, "registration_secret") > 0, RESTART_S)
        assert set(by_id(bench)) == {"unified-0", "unified-1", "unified-2"}
    finally:
        stranger.stop()


class Listener(threading.Thread):
    """Reads a stream to its end; `count` tokens so far."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.count = 0
        self.outcome: Outcome | None = None
        self._stream = stream
        self.start()

    def run(self) -> None:
        while tokens := self._stream.next_tokens():
            self.count += len(tokens)
        self.outcome = self._stream.finish()


def let_all_go_on(listeners: list[Listener]) -> None:
    """Two tokens more of each: what has answered here is not what a worker dies of."""
    counts = [one.count for one in listeners]
    wait_for(lambda: all(one.count >= had + 2 for one, had in zip(listeners, counts, strict=True)))


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)], ids=["killed", "frozen"]
)
def test_d2_what_kills_its_worker_touches_two_and_all_others_go_on(
    bench: PDBench, reference: PDBench, how: signal.Signals
) -> None:
    """All are at one worker, which dies; at the next, which dies; and only the killer goes to no third."""
    prompts = [fresh_prompt(50) for _ in range(NUM_INNOCENT)]
    asks = [{**LONG, "seed": number} for number in range(NUM_INNOCENT)]
    wanted = [reference.client.complete(prompt, **ask) for prompt, ask in zip(prompts, asks, strict=True)]
    killer = fresh_prompt(1000)
    dispatched = {name: worker["dispatched"] for name, worker in by_id(bench).items()}
    barred = bench.metric("atomesh_prompts_quarantined_total")
    first, second, third = sorted(dispatched)
    bench.arm("unified", "step_delay", 1000, 0.3)
    park(bench, second, third)
    with ThreadPoolExecutor(1) as threads, ExitStack() as frozen:
        streams = [bench.client.stream(one, **ask) for one, ask in zip(prompts, asks, strict=True)]
        listeners = [Listener(stream) for stream in streams]
        wait_for(lambda: all(one.count > 0 for one in listeners))
        asked = threads.submit(bench.client.complete, killer, **SHORT)
        for dying, heir in ((first, second), (second, third)):
            wait_for_legs(bench, dying, NUM_INNOCENT + 1)
            park(bench, *({first, second, third} - {heir}))
            let_all_go_on(listeners)
            worker = by_id(bench)[dying]
            if how == signal.SIGKILL:
                bench.end(worker)
            else:
                frozen.enter_context(bench.frozen_worker(worker))
            wait_for_legs(bench, heir, NUM_INNOCENT)
        answer = asked.result()
        bench.arm("unified", "step_delay", 0)
        for listener in listeners:
            listener.join()
        check_that_two_were_touched(bench, answer, dispatched)
        again = bench.client.complete(killer, **SHORT)
        assert (again.status, again.headers["x-should-retry"]) == (500, "false")
        check_that_two_were_touched(bench, answer, dispatched)
    assert [listener.outcome for listener in listeners] == wanted
    assert bench.metric("atomesh_prompts_quarantined_total") == barred + 1
    wait_for(lambda: {worker["state"] for worker in bench.workers()} == {"ready"}, RESTART_S)
    bench.arm("unified", "step_delay", 0)
    park(bench)


def check_that_two_were_touched(bench: PDBench, answer: Outcome, before: dict[str, int]) -> None:
    assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")
    assert "2 workers were lost" in answer.message
    new = [worker["dispatched"] - before[name] for name, worker in sorted(by_id(bench).items())]
    assert new == [NUM_INNOCENT + 1, NUM_INNOCENT + 1, NUM_INNOCENT]


@pytest.mark.soak
def test_c7_one_that_is_killed_for_good_is_forgotten_when_its_lease_is_over(joining: Joining) -> None:
    bench = joining.bench
    words = [*joining.words, "--worker-id=mortal", f"--listen=127.0.0.1:{free_port()}"]
    mortal = subprocess.Popen(command(*words), env=joining.environment)
    try:
        wait_for(lambda: by_id(bench).get("mortal", {}).get("state") == "ready", RESTART_S)
    finally:
        mortal.kill()
        mortal.wait()
    wait_for(lambda: by_id(bench)["mortal"]["state"] == "lost")
    seconds = wait_for(lambda: "mortal" not in by_id(bench), LEASE_S + 10.0)
    assert seconds > LEASE_S - RENEW_S - 1.0
    bench.begin()
