from collections import Counter
from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from atomesh.errors import ServiceUnavailableError
from atomesh.mesh.cluster.snapshot import WorkerSnapshot
from atomesh.mesh.placement.placement import (
    Placement,
    PlacementRules,
    PrefillDecode,
    Rest,
    Unified,
    candidates,
    choose,
)
from atomesh.protocol.generation import GenerationRequest
from atomesh.protocol.sampling import SamplingSpec
from atomesh.protocol.worker import LoadReport, Role, RoleWeights
from atomesh.testing.mesh_snapshots import LAYOUT, MODEL, cluster, worker_snapshot
from atomesh.testing.placed import place_by_count, place_rest_by_count

NOW = 100.0
REQUIRED = PlacementRules(require_disaggregation=True)


def request(tokens: int = 100) -> GenerationRequest:
    return GenerationRequest(
        request_id="r", prompt_token_ids=[1] * tokens, sampling=SamplingSpec(seed=0, max_tokens=8)
    )


def chosen(*workers: WorkerSnapshot, rules: PlacementRules | None = None) -> list[str]:
    return names(place_by_count(request(), workers, rules or PlacementRules()))


def names(placement: Placement) -> list[str]:
    match placement:
        case Unified(worker):
            return [worker.address]
        case PrefillDecode(prefill, decode):
            return [prefill.address, decode.address]


def test_apart_where_the_roles_are() -> None:
    assert chosen(worker_snapshot("d", "decode"), worker_snapshot("p", "prefill")) == ["p", "d"]


def test_each_role_to_the_least_loaded_of_its_own() -> None:
    workers = [
        worker_snapshot("p1", "prefill", prefill_tokens=500),
        worker_snapshot("p2", "prefill", prefill_tokens=400),
        worker_snapshot("d1", "decode", sequences=2),
        worker_snapshot("d2", "decode", load=LoadReport(running=2, waiting=1)),
    ]
    assert chosen(*workers) == ["p2", "d1"]


def test_equals_keep_their_requests_whole() -> None:
    for loads in ([0, 0], [9, 3], [1000, 0], [3, 9]):
        workers = [worker_snapshot(f"u{i}", sequences=load) for i, load in enumerate(loads)]
        assert chosen(*workers) == [f"u{loads.index(min(loads))}"]


def test_a_busy_unified_worker_sends_its_prompts_away() -> None:
    prefill = worker_snapshot("p", "prefill")
    assert chosen(prefill, worker_snapshot("u")) == ["u"]
    assert chosen(prefill, worker_snapshot("u", sequences=20)) == ["p", "u"]


def test_a_small_weight_makes_a_worker_dear() -> None:
    seldom = worker_snapshot("seldom", weights=RoleWeights(prefill=0.1, decode=0.1))
    busy = worker_snapshot("busy", sequences=5)
    assert chosen(seldom, busy) == ["busy"]
    assert chosen(seldom, replace(busy, sequences=200)) == ["seldom"]


def test_equal_workers_take_turns() -> None:
    dispatched = Counter({"a": 0, "b": 0, "c": 0})
    for _ in range(9):
        [name] = chosen(*(worker_snapshot(name, dispatched=n) for name, n in dispatched.items()))
        dispatched[name] += 1
    assert dispatched == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_role_alone_does_it_all_and_says_so(role: str) -> None:
    placement = place_by_count(request(), [worker_snapshot("w", role)], PlacementRules())
    assert isinstance(placement, Unified)
    assert placement.is_fallback


def test_the_local_prefill_is_a_decode_workers() -> None:
    workers = [worker_snapshot("p", "prefill", layout=None), worker_snapshot("d", "decode", sequences=9)]
    assert chosen(*workers) == ["d"]


@pytest.mark.parametrize("role", ["prefill", "decode", "unified"])
def test_no_fall_back_where_disaggregation_is_required(role: str) -> None:
    with pytest.raises(ServiceUnavailableError, match="different workers"):
        chosen(worker_snapshot("w", role), rules=REQUIRED)


def test_unified_workers_can_be_a_pair_where_it_is_required() -> None:
    assert sorted(chosen(worker_snapshot("a"), worker_snapshot("b"), rules=REQUIRED)) == ["a", "b"]


def test_nor_while_others_are_starting() -> None:
    rules = PlacementRules(may_fall_back=False)
    with pytest.raises(ServiceUnavailableError, match="starting"):
        chosen(worker_snapshot("d", "decode"), rules=rules)
    assert chosen(worker_snapshot("u"), rules=rules) == ["u"]


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "bfloat16"), ("block_size", 32), ("weights", "other"), ("head_dim", 2)]
)
def test_workers_whose_kv_differs_are_no_pair_and_the_field_is_named(field: str, value: object) -> None:
    decode = worker_snapshot("d", "decode", layout=replaced(LAYOUT, **{field: value}))
    prefill = worker_snapshot("p", "prefill")
    for rules in (PlacementRules(), REQUIRED):
        with pytest.raises(ServiceUnavailableError, match=f"{field} is"):
            chosen(prefill, decode, rules=rules)
    assert chosen(prefill, decode, worker_snapshot("d2", "decode", sequences=50)) == ["p", "d2"]


CANDIDATES = {
    "not ready": worker_snapshot("x", state="lost"),
    "draining": worker_snapshot("x", state="draining"),
    "silent": worker_snapshot("x", heard_at=NOW - 1.1),
    "parked": worker_snapshot("x", weights=RoleWeights(prefill=0.0, decode=0.0)),
    "excluded": worker_snapshot("excluded"),
}


@pytest.mark.parametrize("other", CANDIDATES.values(), ids=CANDIDATES.keys())
def test_who_gets_no_new_work(other: WorkerSnapshot) -> None:
    good = worker_snapshot("good", sequences=50)
    found = candidates(MODEL, cluster(other, good), NOW, {"excluded-life"})
    assert [worker.address for worker in found.fresh] == ["good"]


def test_a_worker_is_silent_after_a_second_and_not_before() -> None:
    workers = [worker_snapshot("x", heard_at=NOW - 1.0), worker_snapshot("y", heard_at=NOW - 1.01)]
    found = candidates(MODEL, cluster(*workers), NOW)
    assert [worker.address for worker in found.ready] == ["x", "y"]
    assert [worker.address for worker in found.fresh] == ["x"]


def choice(rules: PlacementRules, *workers: WorkerSnapshot) -> list[str] | None:
    found = candidates(MODEL, cluster(*workers), NOW)
    placement = choose(found, lambda some: place_by_count(request(), some, rules))
    return None if placement is None else names(placement)


def silent(name: str, role: Role, **fields: object) -> WorkerSnapshot:
    return worker_snapshot(name, role, heard_at=NOW - 2.0, **fields)


def test_the_silent_get_no_new_work_but_are_waited_for() -> None:
    assert choice(PlacementRules(), silent("u", "unified")) is None
    assert choice(PlacementRules(), silent("p", "prefill"), silent("d", "decode")) is None
    assert choice(PlacementRules(), silent("u", "unified"), worker_snapshot("v", sequences=99)) == ["v"]


def test_they_are_waited_for_only_where_nobody_else_can_do_it() -> None:
    pair = silent("d", "decode"), worker_snapshot("p", "prefill")
    assert choice(PlacementRules(), *pair) == ["p"]
    assert choice(REQUIRED, *pair) is None
    assert choice(REQUIRED, *pair, worker_snapshot("d2", "decode", sequences=99)) == ["p", "d2"]


def test_they_are_not_waited_for_where_they_are_no_help() -> None:
    with pytest.raises(ServiceUnavailableError, match="different workers"):
        choice(REQUIRED, silent("p2", "prefill"), worker_snapshot("p", "prefill"))
    other = silent("d", "decode", layout=replaced(LAYOUT, dtype="bfloat16"))
    with pytest.raises(ServiceUnavailableError, match="dtype is"):
        choice(REQUIRED, other, worker_snapshot("p", "prefill"))


def test_there_may_be_nobody() -> None:
    with pytest.raises(ServiceUnavailableError, match="no worker is ready to serve 'm'"):
        candidates(MODEL, cluster(worker_snapshot("x", state="lost")), NOW)
    with pytest.raises(ServiceUnavailableError):
        candidates("another", cluster(worker_snapshot("x")), NOW)
    with pytest.raises(ServiceUnavailableError, match="every worker that serves 'm' is parked"):
        candidates(MODEL, cluster(worker_snapshot("x", "parked"), worker_snapshot("y", state="lost")), NOW)
    with pytest.raises(ServiceUnavailableError, match="no worker is ready to serve 'm'"):
        candidates(MODEL, cluster(worker_snapshot("x")), NOW, excluded=[worker_snapshot("x").incarnation])


def test_the_rest_of_an_answer_goes_to_decode_first_and_never_to_other_weights() -> None:
    lost = worker_snapshot("lost", "decode")
    other = worker_snapshot("other", "decode", layout=replaced(LAYOUT, weights="v"))
    prefill = worker_snapshot("p", "prefill")
    decode = worker_snapshot("d", "decode", sequences=9)
    rest = Rest(lost, num_tokens=100, choices=1, request=request())
    assert place_rest_by_count(rest, [other, prefill, decode], PlacementRules()) == Unified(
        decode, is_fallback=True
    )
    assert place_rest_by_count(rest, [other, prefill], PlacementRules()) == Unified(prefill, is_fallback=True)
    with pytest.raises(ServiceUnavailableError, match="go on"):
        place_rest_by_count(rest, [other], PlacementRules())


def test_the_rest_of_an_answer_goes_to_a_pair_where_one_is_required_or_nowhere() -> None:
    rest = Rest(worker_snapshot("lost", "decode"), num_tokens=100, choices=1, request=request())
    prefill, decode = worker_snapshot("p", "prefill"), worker_snapshot("d", "decode")
    assert place_rest_by_count(rest, [prefill, decode], REQUIRED) == PrefillDecode(prefill, decode)
    for alone in (prefill, decode, worker_snapshot("u")):
        with pytest.raises(ServiceUnavailableError, match="different workers"):
            place_rest_by_count(rest, [alone], REQUIRED)
    other = worker_snapshot("d", "decode", layout=replaced(LAYOUT, weights="v"))
    with pytest.raises(ServiceUnavailableError):
        place_rest_by_count(rest, [prefill, other], REQUIRED)
    with pytest.raises(ServiceUnavailableError):
        place_rest_by_count(rest, [], REQUIRED)
