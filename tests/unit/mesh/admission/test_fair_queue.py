from collections import Counter
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.mesh.admission.fair_queue import FairQueue, Waiting
from atomesh.mesh.admission.tenant import PriorityClass, Tenant

A, B = Tenant("a"), Tenant("b")


def waiting(tenant: Tenant, tokens: int = 1, at: float = 0.0, priority: int = 0) -> Waiting:
    return Waiting(tenant, tokens, 1, at, priority)


def serve(queue: FairQueue, cost: float = 1.0) -> Waiting:
    entry = queue.first(lambda _: True)
    assert entry is not None
    queue.serve(entry)
    queue.charge(entry.tenant, cost)
    return entry


def served(queue: FairQueue, number: int) -> str:
    return "".join(serve(queue).tenant.name for _ in range(number))


def filled(*tenants: Tenant, each: int = 50) -> FairQueue:
    queue = FairQueue()
    for tenant in tenants:
        for _ in range(each):
            queue.push(waiting(tenant))
    return queue


def test_equals_take_turns_however_many_each_has_sent() -> None:
    queue = filled(A)
    for _ in range(3):
        queue.push(waiting(B, at=1.0))
    assert served(queue, 8) == "abababaa"


def test_turns_go_by_weight() -> None:
    counts = Counter(served(filled(Tenant("a", weight=3.0), B), 40))
    assert counts == {"a": 30, "b": 10}


def test_turns_go_by_cost() -> None:
    queue, spent = filled(A, B), {"a": 0.0, "b": 0.0}
    for _ in range(44):
        entry = queue.first(lambda _: True)
        assert entry is not None
        cost = 10.0 if entry.tenant is A else 1.0
        queue.serve(entry)
        queue.charge(entry.tenant, cost)
        spent[entry.tenant.name] += cost
    assert spent == {"a": 40.0, "b": 40.0}


def test_idleness_saves_up_no_claim_and_is_no_debt() -> None:
    queue = filled(A)
    served(queue, 20)
    for _ in range(5):
        queue.push(waiting(B))
    assert served(queue, 10) == "b" + "ab" * 4 + "a"  # by turns, and not five of b's at once


def test_a_debt_outlasts_an_absence_and_no_more_is_remembered() -> None:
    queue = FairQueue()
    queue.push(waiting(A))
    serve(queue, cost=100.0)
    queue.forget(A)
    for _ in range(9):
        queue.push(waiting(A, at=0.0))
        queue.push(waiting(B, at=5.0))
    assert served(queue, 9) == "b" * 9
    queue = FairQueue()
    queue.push(waiting(A))
    serve(queue, cost=0.0)
    queue.forget(A)
    assert queue._tags == {}


def test_a_higher_class_goes_first() -> None:
    queue = filled(Tenant("l", priority_class="low"), A, Tenant("h", priority_class="high"), each=2)
    assert served(queue, 6) == "hhaall"


def test_within_a_tenant_the_lower_number_goes_first_then_the_older() -> None:
    queue = FairQueue()
    entries = [waiting(A, priority=priority) for priority in (0, 5, -1, 0)]
    for entry in entries:
        queue.push(entry)
    assert [entries.index(serve(queue)) for _ in entries] == [2, 0, 3, 1]


def test_who_leaves_leaves_no_trace() -> None:
    queue = FairQueue()
    entry = waiting(A, tokens=7)
    queue.push(entry)
    assert (queue.num_requests, queue.num_tokens, queue.count("a")) == (1, 7, 1)
    assert queue.remove(entry)
    assert not queue.remove(entry)
    assert (queue.num_requests, queue.num_tokens, queue.count("a"), list(queue)) == (0, 0, 0, [])


CLASSES: list[PriorityClass] = ["high", "normal"]
tenants = st.builds(
    Tenant,
    name=st.sampled_from("abcd"),
    weight=st.sampled_from([0.5, 1.0, 2.0, 8.0]),
)


@given(
    st.lists(tenants, min_size=2, max_size=4, unique_by=lambda tenant: tenant.name),
    st.lists(st.integers(1, 100), min_size=1, max_size=100),
)
def test_backlogged_tenants_are_never_further_apart_than_one_request_each(
    present: list[Tenant], costs: list[int]
) -> None:
    queue = filled(*present, each=len(costs))
    spent = dict.fromkeys((tenant.name for tenant in present), 0.0)
    for cost in costs:
        entry = serve(queue, cost)
        spent[entry.tenant.name] += cost / entry.tenant.weight
    for one in present:
        for other in present:
            bound = max(costs) / one.weight + max(costs) / other.weight
            assert abs(spent[one.name] - spent[other.name]) <= bound


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "serve", "drop"]), st.sampled_from("ab"), st.integers(0, 9)),
        max_size=60,
    )
)
def test_the_counts_are_those_of_the_line(moves: list[tuple[str, str, int]]) -> None:
    queue, line = FairQueue(), list[Waiting]()
    for move, name, tokens in moves:
        if move == "push":
            line.append(waiting(Tenant(name), tokens))
            queue.push(line[-1])
        elif line and move == "serve":
            line.remove(serve(queue))
        elif line:
            queue.remove(line.pop(tokens % len(line)))
        assert queue.num_requests == len(line)
        assert queue.num_tokens == sum(entry.prompt_tokens for entry in line)
        assert set(queue) == set(line)
        assert all(queue.count(one) == sum(entry.tenant.name == one for entry in line) for one in "ab")


@pytest.mark.parametrize("cost", [inf, -inf, nan])
def test_what_is_no_amount_is_not_charged(cost: float) -> None:
    queue = FairQueue()
    for name in "ab":
        queue.push(waiting(Tenant(name)))
    queue.charge(Tenant("a"), 1.0)
    with pytest.raises(ValueError, match=r"the charge of tenant 'a' is .*; it must be finite"):
        queue.charge(Tenant("a"), cost)
    assert [serve(queue).tenant.name for _ in range(2)] == ["b", "a"]
