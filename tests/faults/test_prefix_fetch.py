"""A prefix is fetched from another worker: whatever befalls it, the answer is U's and nothing is left over.

Steps are slowed down, so that placement has a reason to fetch, and the test the time to interfere.
"""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import TWO_UNIFIED, TWO_UNIFIED_TCP, PDBench, Shape, pd_bench
from atomesh.testing.served_process import wait_for

FIELDS = {"max_tokens": 8, "ignore_eos": True}
STEP_S = 0.1
LENGTH = 600
CACHED = LENGTH // 32 * 32
DEAR = {"prefill": 1e-4, "decode": 1e-4}
POOL = ThreadPoolExecutor(1)


@pytest.fixture(
    scope="module",
    params=[TWO_UNIFIED, pytest.param(TWO_UNIFIED_TCP, marks=pytest.mark.soak)],
    ids=lambda shape: shape.name,
)
def two(
    request: pytest.FixtureRequest, model: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PDBench]:
    """Two unified workers."""
    shape: Shape = request.param
    with pd_bench(model, tmp_path_factory.mktemp("home"), shape) as bench:
        yield bench


@pytest.fixture
def twins(two: PDBench) -> Iterator[PDBench]:
    two.arm("unified", "step_delay", 1000, STEP_S)
    yield two
    wait_for(two.served.is_ready, 60.0)
    for worker in two.workers():
        two.admin("POST", f"/workers/{worker['id']}/role", {"role": "unified"})


def prefer(bench: PDBench, chosen: str) -> None:
    """All but this worker are dear from now on; they are still there to be asked for what they hold."""
    for worker in bench.workers():
        wanted = {"role": "unified"} if worker["id"] == chosen else {"weights": DEAR}
        assert bench.admin("POST", f"/workers/{worker['id']}/role", wanted).status == 200


def warm(bench: PDBench, prompt: list[int], worker: str) -> None:
    """The prompt lies with this worker, as the gateway knows."""
    prefer(bench, worker)
    answer = bench.client.complete(prompt, max_tokens=1)
    assert (answer.status, answer.cached_tokens) == (200, 0)
    wait_for(lambda: by_id(bench, worker)["load"]["running"] == 0)


def by_id(bench: PDBench, worker_id: str) -> dict[str, Any]:
    [worker] = [one for one in bench.workers() if one["id"] == worker_id]
    return worker


def fetches(bench: PDBench, half: str = "fetched") -> dict[str, float]:
    """By outcome, over all workers' lives."""
    text = bench.client.get("/metrics")
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("atomesh_kv_transfers_total{") and f'outcome="{half}' in line:
            outcome = line.partition('outcome="')[2].partition('"')[0]
            found[outcome] = found.get(outcome, 0.0) + float(line.rpartition(" ")[2])
    return found


def gained(bench: PDBench, before: dict[str, float]) -> dict[str, float]:
    found = {name: number - before.get(name, 0.0) for name, number in fetches(bench).items()}
    return {name: number for name, number in found.items() if number}


def answer_of(bench: PDBench, prompt: list[int], **fields: Any) -> Outcome:
    return bench.client.complete(prompt, **{**FIELDS, **fields})


def test_what_another_holds_is_fetched_told_and_counted(twins: PDBench, reference: PDBench) -> None:
    lender, borrower = "unified-0", "unified-1"
    prompt = fresh_prompt(LENGTH)
    warm(twins, prompt, lender)
    before, lent = fetches(twins), fetches(twins, "lent").get("lent_complete", 0.0)
    prefer(twins, borrower)
    stream = twins.client.stream(prompt, **FIELDS)
    first = stream.next_frame()
    assert first is not None
    answer = stream.finish()
    assert answer == reference.client.complete(prompt, **FIELDS)
    assert (answer.path, answer.cached_tokens) == ("unified", CACHED)
    wait_for(lambda: gained(twins, before) == {"fetched_complete": 1.0}, 5.0)
    assert fetches(twins, "lent")["lent_complete"] == lent + 1.0
    [told] = twins.admin("GET", f"/explain/{first['id']}").body["requests"]
    [attempt] = told["attempts"]
    chosen, predicted, measured = attempt["chosen"], attempt["predicted"], told["measured"]
    assert (chosen["prefill"], chosen["fetch_from"]) == (borrower, lender)
    assert predicted["cached_tokens"] == measured["cached_tokens"] == CACHED
    assert 0.0 < predicted["fetch_s"] < STEP_S
    assert 0.0 < measured["fetch_s"] < 1.0
    assert twins.metric("atomesh_placement_fetch_error_seconds_count") >= 1.0


@pytest.mark.parametrize("end", ["lender", "borrower"])
def test_either_dies_in_mid_push(twins: PDBench, reference: PDBench, end: str) -> None:
    lender, borrower = "unified-0", "unified-1"
    prompt = fresh_prompt(LENGTH)
    wanted = reference.client.complete(prompt, **FIELDS)
    warm(twins, prompt, lender)
    before = fetches(twins)
    prefer(twins, borrower)
    break_push(twins, lender, "kv_delay_push", 30.0)
    stream = begin(twins, prompt)
    wait_for(lambda: by_id(twins, borrower)["load"].get("reserved_blocks", 0) == CACHED // 32, 5.0)
    began = time.monotonic()
    twins.end(by_id(twins, lender if end == "lender" else borrower), signal.SIGKILL)
    assert stream.result() == wanted
    assert time.monotonic() - began < 5.0
    if end == "lender":
        assert gained(twins, before) == {"fetched_peer_lost": 1.0}


def test_a_push_that_never_comes_costs_no_more_than_computing(twins: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(LENGTH)
    warm(twins, prompt, "unified-1")
    before = fetches(twins)
    prefer(twins, "unified-0")
    break_push(twins, "unified-1", "kv_drop_push")
    began = time.monotonic()
    answer = answer_of(twins, prompt)
    assert time.monotonic() - began < 5.0
    assert answer == reference.client.complete(prompt, **FIELDS)
    assert answer.cached_tokens == 0
    wait_for(lambda: gained(twins, before) == {"fetched_late": 1.0}, 5.0)


def test_the_client_leaves_in_mid_push(twins: PDBench) -> None:
    prompt = fresh_prompt(LENGTH)
    warm(twins, prompt, "unified-0")
    before = fetches(twins)
    prefer(twins, "unified-1")
    break_push(twins, "unified-0", "kv_delay_push", 1.5)
    twins.client.leave_after(0.2, prompt, **FIELDS)
    wait_for(lambda: gained(twins, before) == {"fetched_aborted": 1.0}, 5.0)
    assert twins.settle(5.0) < 5.0


def test_another_salt_shares_nothing(twins: PDBench, reference: PDBench) -> None:
    prompt = fresh_prompt(LENGTH)
    warm(twins, prompt, "unified-0")
    before = fetches(twins)
    prefer(twins, "unified-1")
    answer = answer_of(twins, prompt, cache_salt="another tenant's")
    assert answer == reference.client.complete(prompt, **FIELDS)
    assert answer.cached_tokens == 0
    assert gained(twins, before) == {}


def test_prefill_fetches_the_first_answer_from_decode(apart: PDBench, reference: PDBench) -> None:
    """The second turn: decode holds what it has said, prefill only what it was asked."""
    apart.arm("prefill", "step_delay", 1000, STEP_S)
    question = fresh_prompt(320)
    first = apart.client.complete(question, max_tokens=300, ignore_eos=True)
    before = fetches(apart)
    turn = [*question, *first.tokens, *fresh_prompt(20)]
    wait_for(apart.is_idle, 5.0)
    answer = answer_of(apart, turn)
    assert answer == reference.client.complete(turn, **FIELDS)
    assert (answer.status, answer.path) == (200, "prefill-decode")
    assert answer.cached_tokens == (320 + 299) // 32 * 32
    wait_for(lambda: gained(apart, before) == {"fetched_complete": 1.0}, 5.0)


def break_push(bench: PDBench, worker_id: str, point: str, seconds: float = 0.0) -> None:
    """What happens to the worker's next push."""
    shot = {"worker": worker_id, "point": point, "count": 1, "argument": seconds}
    assert bench.admin("POST", "/debug/fault", shot).status == 200


def begin(bench: PDBench, prompt: list[int]) -> Future[Outcome]:
    return POOL.submit(answer_of, bench, prompt)
