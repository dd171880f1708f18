"""Ten thousand requests of mixed outcome: finished, left in any phase, timed out, their worker killed."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import ONE_AND_ONE, ONE_AND_ONE_TCP, PDBench, Shape, pd_bench

SEED = 20261130
SAMPLE, WHOLE = 400, 10_000
KILL_EVERY = {SAMPLE: 200, WHOLE: 500}
AT_ONCE = 12
KINDS = ["finish"] * 6 + ["stream"] * 3 + ["leave"] * 4 + ["timeout"]
BROKEN = [("kv_drop_push", 2), ("kv_partial_push", 5), ("kv_drop_commit", 2), ("kv_delay_push", 30)]
RESTART_S = 120.0


@pytest.fixture(scope="module", params=[ONE_AND_ONE, ONE_AND_ONE_TCP], ids=lambda shape: shape.name)
def own_server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PDBench]:
    """With room for a few contexts only, so that blocks are scarce."""
    shape: Shape = request.param
    with pd_bench(model, tmp_path_factory.mktemp("home"), shape, kv_memory="4MiB") as bench:
        yield bench


class Mix:
    """Asks one request after another, each of a kind drawn by its number, and judges what comes of it."""

    def __init__(self, bench: PDBench, prompts: list[list[int]], wanted: list[Outcome]) -> None:
        self.bench = bench
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._prompts = prompts
        self._wanted = wanted
        self._lock = threading.Lock()

    def ask(self, number: int) -> None:
        rng = random.Random(SEED + number)
        which = rng.randrange(len(self._prompts))
        prompt, kind = self._prompts[which], rng.choice(KINDS)
        fields = {"max_tokens": 12, "ignore_eos": True}
        try:
            if kind == "leave":
                self.bench.client.leave_after(rng.uniform(0, 0.3), prompt, **fields)
                self._note(kind)
                return
            headers = (
                {"x-request-timeout": str(round(rng.uniform(0.02, 0.4), 3))} if kind == "timeout" else {}
            )
            ask = self.bench.client.stream if kind == "stream" else self.bench.client.complete
            got = ask(prompt, headers=headers, **fields)
            answer = got if isinstance(got, Outcome) else got.finish()
        except OSError as error:
            self._note(f"no answer: {type(error).__name__}")
            return
        self._judge(number, kind, answer, self._wanted[which])

    def _judge(self, number: int, kind: str, answer: Outcome, wanted: Outcome) -> None:
        had = answer.choices[0].token_ids if answer.choices else ()
        if (answer.status == 200 and answer != wanted) or had != wanted.choices[0].token_ids[: len(had)]:
            self.wrong.append(f"request {number} ({kind}): {answer} instead of {wanted}")
        self._note(f"{kind} {answer.status}")

    def _note(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1


@pytest.mark.timeout(3600)
def test_no_wrong_answer_no_leaked_block_no_stuck_ticket(
    own_server: PDBench, reference: PDBench, soak: bool
) -> None:
    total = WHOLE if soak else SAMPLE
    rng = random.Random(SEED)
    heads = [fresh_prompt(rng.randrange(20, 300)) for _ in range(8)]
    prompts = [rng.choice(heads) + fresh_prompt(rng.randrange(1, 500)) for _ in range(60)]
    wanted = [reference.client.complete(prompt, max_tokens=12, ignore_eos=True) for prompt in prompts]
    mix = Mix(own_server, prompts, wanted)
    period = KILL_EVERY[total]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for start in range(0, total, period):
            for point, count in rng.sample(BROKEN, 2):
                own_server.arm("prefill", point, count, 0.05)
            asked = [threads.submit(mix.ask, number) for number in range(start, start + period)]
            asked[period // 2].result()
            own_server.kill(rng.choice(["prefill", "decode"]))
            for future in asked:
                future.result()
            own_server.settle(RESTART_S)
    assert mix.wrong == []
    assert mix.outcomes.total() == total
    assert {int(name.split()[-1]) for name in mix.outcomes if name[-1].isdigit()} <= {200, 500, 503, 504}
    assert mix.outcomes["finish 200"] + mix.outcomes["stream 200"] > total / 3
    for worker in own_server.kv()["workers"]:
        assert worker["owners"] == {}
        assert sum(worker["states"].values()) == worker["total"]
    assert own_server.admin("GET", "/debug/kv").body["open_tickets"] == 0
