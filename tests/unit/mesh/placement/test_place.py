"""kv_aware as a whole: who is chosen, and what the explanation says of it."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct

from atomesh.errors import InvalidRequestError, ServiceUnavailableError
from atomesh.mesh.cluster.breaker import Breaker
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.kv_index.matches import MatchedBlocks
from atomesh.mesh.placement.cost_model import CostModel
from atomesh.mesh.placement.costs import Costs, LinkCosts, StepCosts, roofline_step
from atomesh.mesh.placement.explanation import MAX_SHOWN, Decision, Predicted, Rejection
from atomesh.mesh.placement.inputs import RequestFacts, Weights
from atomesh.mesh.placement.place import place, place_rest_among
from atomesh.mesh.placement.placement import PlacementRules, PrefillDecode, Rest, Unified
from atomesh.mesh.placement.policies.registry import PolicySet
from atomesh.mesh.placement.scorers.registry import KV_AWARE, SCORERS, load_scorers
from atomesh.protocol.block_hash import BlockHash
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.roofline import Roofline
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.step_sample import StepSample
from atomesh.protocol.worker import LoadReport, Role, RoleWeights
from atomesh.testing.mesh_snapshots import worker_snapshot
from atomesh.testing.placed import placement_inputs

STEP = StepCosts(5e-3, 1e-3, 0.0, 1e-6, 1e-4, chunk_tokens=2048)  # a millisecond a token
LINK = LinkCosts(1e-3, 1e-9)
COSTS = Costs(default_step=STEP, default_link=LINK)
REQUEST = RequestFacts(1600, output_tokens=10, block_size=16)
WEIGHTS = Weights(waste=1.0, most_waste=4.0, interference=0.25, hysteresis=0.1)
SAME_WEIGHTS = GenerationRequest(
    request_id="r", prompt_token_ids=[1] * 90, sampling=SamplingSpec(seed=0, max_tokens=8)
)


BOUNDS = Roofline(
    weight_bytes=2 * 10**9,
    token_flops=2 * 10**9,
    sequence_flops=3 * 10**9,
    pair_flops=4 * 10**5,
    kv_bytes=10**5,
    flops_per_s=1e12,
    bytes_per_s=1e11,
)
WEIGHED = ("queue", "compute", "waste", "relief")  # the terms that the close decisions below are about


@pytest.fixture
def weighed_terms_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever else is in the registry: one more scorer moves the point where two workers change places."""
    prefill = {term: KV_AWARE.prefill[term] for term in WEIGHED}
    monkeypatch.setitem(SCORERS, "kv_aware", replace(KV_AWARE, prefill=prefill, decode={}, pair={}))
    load_scorers.cache_clear()
    yield
    load_scorers.cache_clear()


def decide(
    *workers: WorkerSnapshot,
    held: dict[str, int] | None = None,
    policies: PolicySet | None = None,
    **fields: Any,
) -> Decision:
    """`held`: blocks of 16 tokens of the prompt, by worker."""
    matches = {f"{name}-life": MatchedBlocks(blocks) for name, blocks in (held or {}).items()}
    values = {"request": REQUEST, "costs": COSTS, "matches": matches, "weights": WEIGHTS, **fields}
    return place(placement_inputs(*workers, **values), policies or PolicySet())


def chosen(*workers: WorkerSnapshot, **fields: Any) -> list[str]:
    placement = decide(*workers, **fields).placement
    if isinstance(placement, PrefillDecode):
        return [placement.prefill.address, placement.decode.address]
    return [placement.worker.address]


def busy(name: str, tokens: int, **fields: Any) -> WorkerSnapshot:
    return worker_snapshot(name, prefill_tokens=tokens, **fields)


def test_where_the_prefix_lies() -> None:
    assert chosen(worker_snapshot("a"), worker_snapshot("b"), held={"b": 50}) == ["b"]


def test_until_its_queue_takes_longer_than_computing_it_again() -> None:
    idle = worker_snapshot("a")
    assert chosen(idle, busy("b", 700), held={"b": 50}) == ["b"]
    assert chosen(idle, busy("b", 1200), held={"b": 50}) == ["a"]


@pytest.mark.usefixtures("weighed_terms_alone")
def test_the_more_others_wait_the_more_a_hit_is_worth() -> None:
    """Beside an idle worker 1,200 tokens of queue are too many; where all are busy they are not."""
    assert chosen(busy("a", 5000), busy("b", 6200), held={"b": 50}) == ["b"]
    assert chosen(busy("a", 5000), busy("b", 9000), held={"b": 50}) == ["a"]


@pytest.mark.usefixtures("weighed_terms_alone")
def test_a_popular_prefix_gets_another_home() -> None:
    hashes = tuple(BlockHash(bytes([n]) * 16) for n in range(100))
    request = replace(REQUEST, block_hashes=hashes)
    policies = PolicySet()
    workers = worker_snapshot("a"), busy("b", 300)
    found = [chosen(*workers, held={"b": 50}, request=request, policies=policies) for _ in range(5)]
    assert found == [["b"], ["b"], ["a"], ["a"], ["a"]]


def test_prompts_stay_away_from_answers_that_they_would_stall() -> None:
    decoding = worker_snapshot("a", decoding=8, sequences=8, context_tokens=100)
    assert chosen(decoding, busy("b", 500)) == ["b"]


def test_the_pair_is_chosen_together() -> None:
    workers = [
        busy("p1", 100, role="prefill"),
        worker_snapshot("p2", "prefill"),
        worker_snapshot("d1", "decode", decoding=9, sequences=9, context_tokens=90_000),
        worker_snapshot("d2", "decode"),
    ]
    assert chosen(*workers) == ["p2", "d2"]
    far = Costs(default_step=STEP, default_link=LINK, links={("p2-life", "d2-life"): LinkCosts(1.0, 0.0)})
    assert chosen(*workers, costs=far) == ["p1", "d2"]


def test_decode_goes_where_the_kv_fits() -> None:
    full = LoadReport(total_blocks=100, free_blocks=10)
    workers = [worker_snapshot("p", "prefill"), worker_snapshot("d1", "decode", load=full)]
    slow = worker_snapshot(
        "d2", "decode", decoding=9, sequences=9, load=LoadReport(total_blocks=200, free_blocks=200)
    )
    assert chosen(*workers, slow) == ["p", "d2"]


def steps_of(**times: float) -> Costs:
    """By worker: so many times as slow as STEP."""
    steps = {
        f"{name}-life": StepCosts.from_row([times[name] * value for value in STEP.row], STEP.chunk_tokens)
        for name in times
    }
    return Costs(steps=steps, default_step=STEP, default_link=LINK)


def decoder(name: str, batch: int = 0) -> WorkerSnapshot:
    return worker_snapshot(
        name, "decode", decoding=batch, sequences=batch, context_tokens=1600 * batch, dispatched=batch
    )


@pytest.mark.parametrize(("times", "batch"), [(1.3, 1), (2.0, 2), (4.0, 6)])
def test_an_idle_decode_worker_gets_work_once_its_answer_takes_less_than_joining_costs_all(
    times: float, batch: int
) -> None:
    """A step of one answer takes 6.7 ms; each more adds 1.7 ms to it, and to what all others wait for."""
    workers = [worker_snapshot("p", "prefill"), decoder("slow")]
    costs = steps_of(fast=1.0, slow=times)
    assert chosen(*workers, decoder("fast", batch), costs=costs) == ["p", "slow"]
    assert chosen(*workers, decoder("fast", batch - 1), costs=costs) == ["p", "fast"]


@pytest.mark.parametrize("role", ["decode", "unified", "prefill"])
def test_a_new_worker_that_thinks_little_of_itself_is_tried(role: Role) -> None:
    """It measured its speed while the other's work kept the machine busy."""
    model = CostModel()
    model.introduce("old-life", "m", STEP.chunk_tokens, BOUNDS)
    model.introduce(
        "new-life", "m", STEP.chunk_tokens, replace_struct(BOUNDS, flops_per_s=3e11, bytes_per_s=3e10)
    )
    as_bound = roofline_step(BOUNDS)
    assert as_bound is not None
    for batch in range(1, 10):
        model.observe_step(
            "old-life", StepSample(as_bound.decode_s(1600 * batch, batch), 0, 0, 1600 * batch, batch)
        )
    busy_fields = {
        "prefill": {"prefill_tokens": 100},
        "decode": {"decoding": 1, "sequences": 1, "context_tokens": 1600},
        "unified": {"decoding": 1, "sequences": 1, "context_tokens": 1600},
    }[role]
    old, new = worker_snapshot("old", role, **busy_fields, dispatched=38), worker_snapshot("new", role)
    others = {"decode": [worker_snapshot("p", "prefill")], "prefill": [worker_snapshot("d", "decode")]}
    assert "new" in chosen(old, new, *others.get(role, []), costs=model.view())
    idle = replace(old, prefill_tokens=0, decoding=0, sequences=0, context_tokens=0)
    assert "new" in chosen(idle, new, *others.get(role, []), costs=model.view())


def test_workers_that_have_all_just_begun_share_the_work() -> None:
    """None is measured; what each expects of itself differs by less than it may be wrong."""
    model = CostModel()
    model.introduce("a-life", "m", STEP.chunk_tokens, BOUNDS)
    model.introduce(
        "b-life", "m", STEP.chunk_tokens, replace_struct(BOUNDS, flops_per_s=4e11, bytes_per_s=4e10)
    )
    counts = {"a": 0, "b": 0}
    for _ in range(8):
        workers = [worker_snapshot("p", "prefill"), *(decoder(name, counts[name]) for name in counts)]
        counts[chosen(*workers, costs=model.view())[1]] += 1
    assert counts == {"a": 4, "b": 4}


def test_whole_or_apart_falls_out_of_the_sum_and_does_not_flap() -> None:
    """A worker that decodes a lot sends prompts away; in between, what was done last is done again."""
    prefill = worker_snapshot("p", "prefill")

    def way(decoding: int, last: str | None) -> list[str]:
        unified = worker_snapshot("u", decoding=decoding, sequences=decoding)
        return chosen(prefill, unified, last_way=last)

    assert way(0, None) == way(0, "whole") == ["u"]
    assert way(9, None) == way(9, "apart") == ["p", "u"]
    between = next(n for n in range(1, 400) if chosen_near_tie(n) is not None)
    whole_again, apart_again = chosen_near_tie(between) or ([], [])
    assert (whole_again, apart_again) == (["u"], ["p", "u"])


def chosen_near_tie(queued: int) -> tuple[list[str], list[str]] | None:
    """Where the two ways differ by less than the hysteresis: what is chosen after each of them."""
    prefill, unified = busy("p", queued, role="prefill"), worker_snapshot("u", decoding=1, sequences=1)
    after = [chosen(prefill, unified, last_way=way) for way in ("whole", "apart")]
    return None if after[0] == after[1] else (after[0], after[1])


def test_a_small_weight_makes_a_worker_dear() -> None:
    seldom = worker_snapshot("a", weights=RoleWeights(prefill=0.1, decode=0.1))
    assert chosen(seldom, busy("b", 1000)) == ["b"]
    assert chosen(seldom, busy("b", 40_000)) == ["a"]


def test_the_placement_says_what_is_cached_and_from_where_the_rest_comes() -> None:
    found = decide(
        busy("a", 10_000), worker_snapshot("b"), held={"a": 90}, rules=PlacementRules(may_fetch=True)
    )
    assert isinstance(found.placement, Unified)
    assert found.placement.worker.address == "b"
    assert found.placement.cached_tokens == 1440
    assert found.placement.fetch_from is not None
    assert found.placement.fetch_from.address == "a"
    assert found.explanation.chosen.fetch_from == "a"


def test_the_explanation_has_every_candidate_with_terms_that_sum_up() -> None:
    workers = [worker_snapshot("a", layout=None), busy("b", 100, layout=None)]
    explanation = decide(*workers, held={"b": 50}).explanation
    assert explanation.policy == "kv_aware"
    assert [one.prefill for one in explanation.candidates] == ["b", "a"]
    assert explanation.chosen is explanation.candidates[0]
    assert explanation.runner_up is explanation.candidates[1]
    for candidate in explanation.candidates:
        assert candidate.total_s == pytest.approx(sum(candidate.terms.values()))
    assert explanation.chosen.terms["queue"] == pytest.approx(0.105)
    assert explanation.chosen.terms["compute"] == pytest.approx(0.805)
    assert explanation.predicted == Predicted(800, pytest.approx(0.91), 0.0)
    assert explanation.parameters["best_cached_tokens"] == 800
    assert explanation.rejected == ()


def test_a_pairs_transfer_is_predicted_apart_from_its_first_token() -> None:
    explanation = decide(worker_snapshot("p", "prefill"), worker_snapshot("d", "decode")).explanation
    assert explanation.predicted.ttft_s == pytest.approx(1.605)
    assert explanation.predicted.transfer_s == explanation.chosen.terms["hand_off"]


def test_the_explanation_says_why_others_were_not_asked() -> None:
    explanation = decide(
        worker_snapshot("a"),
        worker_snapshot("b", state="lost"),
        worker_snapshot("c", state="draining"),
        worker_snapshot("d", weights=RoleWeights(prefill=0.0, decode=0.0)),
        worker_snapshot("e", heard_at=97.5),
        worker_snapshot("f"),
        excluded={"f-life"},
    ).explanation
    assert explanation.rejected == (
        Rejection("b", "lost"),
        Rejection("c", "draining"),
        Rejection("d", "parked: both weights are 0"),
        Rejection("e", "silent for 2.5 s"),
        Rejection("f", "has failed this request"),
    )


def test_of_many_workers_the_holders_and_the_idle_are_priced_and_the_others_named() -> None:
    workers = [busy(f"w{n:02}", 9000 + n) for n in range(40)]
    workers[30] = worker_snapshot("w30")
    explanation = decide(*workers, held={"w17": 99}).explanation
    assert explanation.chosen.prefill == "w30"
    priced = {one.prefill for one in explanation.candidates}
    assert {"w00", "w01", "w17", "w30"} <= priced
    assert len(priced) <= 10
    named = priced | {one.worker for one in explanation.rejected}
    assert named == {f"w{n:02}" for n in range(40)}
    assert explanation.rejected[0].reason == "not nominated by the policy"


def test_a_request_may_name_its_policy_and_no_unknown_one() -> None:
    workers = worker_snapshot("a"), busy("b", 1000)
    named = decide(*workers, held={"b": 99}, request=replace(REQUEST, policy="least_work"))
    assert named.explanation.policy == "least_work"
    assert named.explanation.chosen.prefill == "a"
    with pytest.raises(InvalidRequestError, match="no placement policy 'best'; there are kv_aware, "):
        decide(*workers, request=replace(REQUEST, policy="best"))


def test_a_policy_for_each_pool() -> None:
    workers = [worker_snapshot("p", "prefill"), worker_snapshot("d", "decode")]
    assert decide(*workers, policies=PolicySet("kv_aware", "random")).explanation.policy == "kv_aware+random"
    assert decide(*workers, policies=PolicySet("session")).explanation.policy == "session+least_work"


def test_the_rest_of_an_answer_goes_where_its_prompt_lies() -> None:
    rest = Rest(worker_snapshot("lost"), 1600, 1, SAME_WEIGHTS)
    workers = [worker_snapshot("a"), worker_snapshot("b"), worker_snapshot("p", "prefill")]
    inputs = placement_inputs(
        *workers,
        request=REQUEST,
        costs=COSTS,
        matches={"b-life": MatchedBlocks(90), "p-life": MatchedBlocks(99)},
    )
    found = place_rest_among(rest, workers, inputs, PolicySet())
    assert found.placement == Unified(workers[1], is_fallback=True, cached_tokens=1440)


def test_of_very_many_ways_the_cheapest_are_kept_and_the_rest_are_said_to_be_dearer() -> None:
    workers = [busy(f"w{n:02}", 1000 * n) for n in range(40)]
    rest = Rest(worker_snapshot("lost"), 1600, 1, SAME_WEIGHTS)
    inputs = placement_inputs(*workers, request=REQUEST, costs=COSTS)
    explanation = place_rest_among(rest, workers, inputs, PolicySet()).explanation
    assert [one.prefill for one in explanation.candidates] == [f"w{n:02}" for n in range(MAX_SHOWN)]
    assert explanation.rejected == tuple(
        Rejection(f"w{n:02}", "dearer than the 32 ways that are shown") for n in range(MAX_SHOWN, 40)
    )


def test_an_explanation_that_is_kept_keeps_no_more_workers_than_it_shows() -> None:
    workers = [busy(f"w{n:02}", 1000 * n) for n in range(200)]
    explanation = decide(*workers).explanation
    ours = {id(worker): worker.address for worker in workers}
    held, seen, todo = set[str](), set[int](), [explanation]
    while todo:
        one = todo.pop()
        if id(one) not in seen:
            seen.add(id(one))
            held |= {ours[id(one)]} if id(one) in ours else set()
            todo += [each for each in gc.get_referents(one) if not isinstance(each, type)]
    assert held == {one.prefill for one in explanation.candidates}
    assert len(held) <= 10


def test_nobody_is_nobody() -> None:
    with pytest.raises(ServiceUnavailableError):
        decide(worker_snapshot("a", state="lost"))


def test_a_worker_whose_breaker_is_open_is_none_of_the_candidates() -> None:
    breaker = Breaker(faults=5, retry_at=101.0)
    decision = decide(worker_snapshot("a"), worker_snapshot("b", breaker=breaker), held={"b": 50}, now=100.2)
    assert decision.explanation.rejected == (Rejection("b", "failed 5 times in a row: tried again in 0.8 s"),)
    with pytest.raises(ServiceUnavailableError, match="failed again and again"):
        decide(worker_snapshot("b", breaker=breaker), now=100.2)
    assert chosen(worker_snapshot("b", breaker=breaker), now=101.0) == ["b"]
