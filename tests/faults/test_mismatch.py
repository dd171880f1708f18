"""FAULTS A4 with real processes: workers that differ under one model's name never share an answer."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from atomesh.engine.weights.digest import weights_digest
from atomesh.model_files.checkpoint import open_checkpoint
from atomesh.testing.completion_client import Outcome
from atomesh.testing.fresh_prompts import fresh_prompt
from atomesh.testing.pd_bench import PDBench, Shape
from atomesh.testing.served_process import ServedProcess, wait_for
from atomesh.testing.tiny_model import write_tiny_model
from atomesh.testing.wired_cluster import WorkerPlan, mixed_cluster

NORMAL = "normal"


@dataclass(frozen=True)
class Odd:
    """A worker that differs from the normal one in its model, `model` being write_tiny_model's arguments, or
    in its flags; `differs` is the field that is to be named."""

    differs: str
    model: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    block_size: int = 32
    is_sampled: bool = True


ODD = {
    "other-weights": Odd("weights", {"seed": 1}),
    "other-dtype": Odd("dtype", dtype="bfloat16"),
    "other-blocks": Odd("block_size", block_size=16),
    "other-family": Odd("weights", {"family": "qwen2"}, is_sampled=False),
    "other-layers": Odd("weights", {"num_hidden_layers": 3}, is_sampled=False),
    "other-heads": Odd("weights", {"num_key_value_heads": 4}, is_sampled=False),
    "other-in-all": Odd("weights", {"family": "gemma3"}, "bfloat16", 16, is_sampled=False),
}
NAMES = [
    pytest.param(name, marks=[] if odd.is_sampled else pytest.mark.soak, id=name) for name, odd in ODD.items()
]


@dataclass(frozen=True)
class Mixed:
    """One normal worker, and odd ones of the other role."""

    bench: PDBench
    models: dict[str, Path]

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["id"]: worker for worker in self.bench.workers()}

    def steps(self) -> dict[str, int]:
        """How many each worker has computed so far."""
        return {name: worker["load"]["steps"] for name, worker in self.workers().items()}

    def difference(self, here: str, there: str) -> str:
        """What is to be said of two workers, seen from the first."""
        name = ODD[there if here == NORMAL else here].differs
        return f"{name} is {self.value(here, name)!r} here and {self.value(there, name)!r} there"

    def value(self, name: str, differing: str) -> object:
        odd = ODD.get(name, Odd(""))
        if differing == "weights":
            return weights_digest(open_checkpoint(self.models[name]))
        return {"dtype": odd.dtype, "block_size": odd.block_size}[differing]

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """The normal worker with this odd one, and none of the others until the end of the block."""
        others = [one for one in self.workers().values() if one["id"] not in (NORMAL, name)]
        for one in others:
            assert self.bench.admin("DELETE", f"/workers/{one['id']}").status == 200
        yield
        for one in others:
            assert self.bench.admin("POST", "/workers", {"address": one["address"]}).status == 200
        wait_for(lambda: all_ready(self.bench, 1 + len(others) + 1))

    @contextmanager
    def unified(self) -> Iterator[None]:
        """The normal worker does both until the end of the block."""
        role = self.workers()[NORMAL]["role"]
        assert self.bench.admin("POST", f"/workers/{NORMAL}/role", {"role": "unified"}).status == 200
        yield
        assert self.bench.admin("POST", f"/workers/{NORMAL}/role", {"role": role}).status == 200


def all_ready(bench: PDBench, number: int) -> bool:
    """And all have told their load."""
    workers = [one for one in bench.workers() if one["state"] == "ready" and one["load"]["total_blocks"]]
    return len(workers) == number


def says(served: ServedProcess, words: str) -> bool:
    """Whether it is not ready, and why."""
    try:
        answer = served.request("GET", "/ready")
    except OSError:
        return False
    return answer.status == 503 and words in answer.body["error"]["message"]


def plan(model: Path, role: str, dtype: str, block_size: int) -> WorkerPlan:
    flags = (f"--dtype={dtype}", f"--block-size={block_size}", "--served-model-name=tiny")
    return WorkerPlan(role, model, flags)


@pytest.fixture(
    scope="module",
    params=[("prefill", "decode"), pytest.param(("decode", "prefill"), marks=pytest.mark.soak)],
    ids="-".join,
)
def started(
    request: pytest.FixtureRequest, model: Path, soak: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mixed]:
    normal_role, odd_role = request.param
    odds = {name: odd for name, odd in ODD.items() if odd.is_sampled or soak}
    directory = tmp_path_factory.mktemp("odd")
    models = {
        name: write_tiny_model(directory / name, **odd.model) if odd.model else model
        for name, odd in odds.items()
    }
    plans = {NORMAL: plan(model, normal_role, "float32", 32)}
    for name, odd in odds.items():
        plans[name] = plan(models[name], odd_role, odd.dtype, odd.block_size)
    home = tmp_path_factory.mktemp("home")
    with mixed_cluster(home, plans, "--kv-memory=8MiB") as served:
        served.model = "tiny"
        wait_for(lambda: says(served, "cannot share KV"))
        bench = PDBench(served, Shape(prefill=1, decode=len(odds), is_wired=True), home)
        wait_for(lambda: all_ready(bench, len(plans)))
        yield Mixed(bench, {NORMAL: model, **models})


@pytest.fixture
def mixed(started: Mixed) -> Iterator[Mixed]:
    yield started
    wait_for(started.bench.is_idle)
    assert started.bench.metric("vllm:num_requests_running") == 0
    with started.unified():
        assert started.bench.client.complete([3, 4, 5]).status == 200
    wait_for(started.bench.is_idle)


def refused(outcome: Outcome) -> str:
    """The message of a 503 that came before any token."""
    assert (outcome.status, outcome.choices, outcome.completion_tokens) == (503, (), None)
    return outcome.message


@pytest.mark.parametrize("name", NAMES)
def test_a4_the_operator_sees_from_both_sides_what_differs(mixed: Mixed, name: str) -> None:
    workers = mixed.workers()
    assert workers[name]["model"] == workers[NORMAL]["model"] == "tiny"
    from_here = {one["worker"]: one["difference"] for one in workers[NORMAL]["incompatible"]}
    from_there = {one["worker"]: one["difference"] for one in workers[name]["incompatible"]}
    assert from_here.keys() == workers.keys() - {NORMAL}
    assert from_here[name] == mixed.difference(NORMAL, name)
    assert from_there[NORMAL] == mixed.difference(name, NORMAL)


@pytest.mark.parametrize("name", NAMES)
def test_a4_the_client_is_told_what_differs_and_nobody_computes(mixed: Mixed, name: str) -> None:
    client = mixed.bench.client
    is_prefill = mixed.workers()[NORMAL]["role"] == "prefill"
    seen = mixed.difference(NORMAL, name) if is_prefill else mixed.difference(name, NORMAL)
    before = mixed.steps()
    with mixed.alone(name):
        whole = refused(client.complete(fresh_prompt(100)))
        assert whole == (
            f"the prefill and the decode worker cannot share KV: {seen}; start both with the same flags"
        )
        assert refused(client.stream(fresh_prompt(100)).finish()) == whole
        assert refused(client.complete(fresh_prompt(100), max_tokens=1, n=2, temperature=1)) == whole
        assert says(mixed.bench.served, seen)
    assert mixed.steps() == before


def test_a4_with_all_of_them_there_the_answer_is_a_refusal_too(mixed: Mixed) -> None:
    before = mixed.steps()
    assert "cannot share KV" in refused(mixed.bench.client.complete(fresh_prompt(100)))
    assert mixed.steps() == before


def test_a4_what_the_normal_worker_does_alone_no_odd_one_touches(mixed: Mixed, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    before = mixed.steps()
    with mixed.unified():
        outcome = mixed.bench.client.complete(prompt, max_tokens=40, ignore_eos=True)
    assert outcome == reference.client.complete(prompt, max_tokens=40, ignore_eos=True)
    assert (outcome.status, outcome.path) == (200, "unified")
    computed = {name for name, steps in mixed.steps().items() if steps > before[name]}
    assert computed == {NORMAL}


@pytest.mark.soak
def test_a4_no_odd_worker_goes_on_with_an_answer_that_has_begun(mixed: Mixed, reference: PDBench) -> None:
    prompt = fresh_prompt(100)
    expected = reference.client.complete(prompt, max_tokens=400, ignore_eos=True)
    with mixed.unified():
        before = mixed.steps()
        worker = mixed.workers()[NORMAL]
        stream = mixed.bench.client.stream(prompt, max_tokens=400, ignore_eos=True)
        stream.next_tokens()
        os.kill(worker["pid"], signal.SIGKILL)
        outcome = stream.finish()
        assert outcome.status in (500, 503)
        assert not outcome.ended_well
        assert expected.tokens[: len(outcome.tokens)] == outcome.tokens
        assert 1 <= len(outcome.tokens) < 400
        wait_for(lambda: all_ready(mixed.bench, len(before)))
        after = mixed.steps()
    assert {name: after[name] for name in after if name != NORMAL} == {
        name: before[name] for name in before if name != NORMAL
    }
