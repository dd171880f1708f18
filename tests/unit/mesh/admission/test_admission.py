from math import inf, nan

import pytest

from atomesh.errors import AtomeshError, DeadlineExceededError, RateLimitError, ServiceUnavailableError
from atomesh.mesh.admission.admission import Admission, QueueRules
from atomesh.mesh.admission.fair_queue import Waiting
from atomesh.mesh.admission.tenant import Tenant

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


def waiting(tenant: Tenant = A, tokens: int = 10, at: float = 0.0, deadline: float | None = None) -> Waiting:
    return Waiting(tenant, tokens, 1, at, deadline_at=deadline)


def always(_entry: Waiting) -> bool:
    return True


def never(_entry: Waiting) -> bool:
    return False


def busy(per_second: float, rules: QueueRules | None = None) -> Admission:
    """At 100 s, after so many departures a second for a long time, with one request running."""
    admission = Admission(rules or QueueRules())
    steps = int(100 * per_second)
    for step in range(steps + 1):
        entry = waiting(at=step / per_second)
        admission.enqueue(entry, step / per_second)
        assert admission.next(always, None, step / per_second) is entry
        if step < steps:
            admission.finished(entry, 0.0, (step + 1) / per_second)
    return admission


def test_nobody_is_bound_until_a_worker_has_room() -> None:
    admission = Admission()
    first, second = waiting(), waiting()
    admission.enqueue(first, 0.0)
    admission.enqueue(second, 0.0)
    assert admission.next(never, None, 1.0) is None
    assert admission.num_waiting == 2
    assert [admission.next(always, None, 1.0) for _ in range(3)] == [first, second, None]
    assert (admission.num_waiting, admission.running_of("a")) == (0, 2)
    admission.finished(first, 5.0, 2.0)
    admission.finished(second, 6.0, 2.0)
    assert (admission.running_of("a"), admission.cost_of("a")) == (0, 11.0)


def test_nobody_overtakes_the_one_who_is_next() -> None:
    admission = Admission()
    admission.enqueue(waiting(A, tokens=1000), 0.0)
    admission.enqueue(waiting(B, tokens=1, at=1.0), 1.0)
    assert admission.next(lambda entry: entry.prompt_tokens < 100, None, 1.0) is None


def test_a_tenant_leaves_places_to_others() -> None:
    admission = Admission()
    for _ in range(4):
        admission.enqueue(waiting(A), 0.0)
    admission.enqueue(waiting(B, at=9.0), 9.0)
    turns = [admission.next(always, 3, 9.0) for _ in range(5)]
    assert [entry and entry.tenant.name for entry in turns] == ["a", "a", "a", "b", None]
    first = turns[0]
    assert first is not None
    admission.finished(first, 0.0, 10.0)
    assert admission.next(always, 3, 10.0) is not None


def test_but_one_with_nothing_else_may_run_what_is_larger() -> None:
    admission = Admission()
    large = Waiting(A, 10, 8, 0.0)
    admission.enqueue(large, 0.0)
    assert admission.next(always, 3, 0.0) is large


def test_deadlines_and_the_longest_wait_end_in_the_line() -> None:
    admission = Admission(QueueRules(max_wait_s=30.0))
    hasty, patient = waiting(deadline=2.0), waiting(at=1.0)
    admission.enqueue(hasty, 0.0)
    admission.enqueue(patient, 1.0)
    assert admission.expire(1.9) == []
    [late] = admission.expire(2.0)
    assert (late.entry, type(late.error)) == (hasty, DeadlineExceededError)
    [tired] = admission.expire(31.0)
    assert (tired.entry, type(tired.error)) == (patient, ServiceUnavailableError)
    assert "within 30 s" in tired.error.message
    assert (admission.num_waiting, admission.refusals["expired"]) == (0, 2)


def test_who_leaves_is_forgotten() -> None:
    admission = Admission()
    entry = waiting()
    admission.enqueue(entry, 0.0)
    assert admission.withdraw(entry)
    assert not admission.withdraw(entry)
    assert admission.next(always, None, 0.0) is None


def test_a_full_line_refuses_whoever_is_alone_in_it() -> None:
    admission = Admission(QueueRules(max_requests=2))
    admission.enqueue(waiting(), 0.0)
    admission.enqueue(waiting(), 0.0)
    with pytest.raises(ServiceUnavailableError, match="2 requests with 20 prompt tokens") as refused:
        admission.enqueue(waiting(), 0.0)
    assert refused.value.retry_after_s == 1
    assert (admission.num_waiting, admission.refusals["queue_full"]) == (2, 1)


def test_whoever_holds_the_most_gives_way() -> None:
    admission = Admission(QueueRules(max_requests=4))
    flood = [waiting(A) for _ in range(4)]
    for entry in flood:
        admission.enqueue(entry, 0.0)
    [out] = admission.enqueue(waiting(B), 0.0)
    assert out.entry is flood[-1]
    assert isinstance(out.error, ServiceUnavailableError)
    [out] = admission.enqueue(waiting(B), 0.0)
    assert out.entry is flood[-2]
    with pytest.raises(RateLimitError, match="2 requests in it"):
        admission.enqueue(waiting(B), 0.0)
    with pytest.raises(RateLimitError):
        admission.enqueue(waiting(A), 0.0)
    [out] = admission.enqueue(waiting(C), 0.0)
    assert admission.refusals == {"pushed_out": 3, "tenant_queue_full": 2}
    assert admission.num_waiting == 4


def test_a_lower_class_gives_way_to_a_higher_and_never_the_other_way() -> None:
    low, high = Tenant("l", priority_class="low"), Tenant("h", priority_class="high", weight=0.1)
    admission = Admission(QueueRules(max_requests=2))
    admission.enqueue(waiting(high), 0.0)
    admission.enqueue(waiting(low), 0.0)
    assert [out.entry.tenant for out in admission.enqueue(waiting(high), 0.0)] == [low]
    with pytest.raises(ServiceUnavailableError):
        admission.enqueue(waiting(low), 0.0)


def test_tokens_are_bounded_too_but_one_request_may_always_wait() -> None:
    admission = Admission(QueueRules(max_tokens=100))
    admission.enqueue(waiting(A, tokens=1000), 0.0)
    with pytest.raises(ServiceUnavailableError):
        admission.enqueue(waiting(A, tokens=1), 0.0)
    admission = Admission(QueueRules(max_tokens=100))
    for _ in range(10):
        admission.enqueue(waiting(A, tokens=10), 0.0)
    assert len(admission.enqueue(waiting(B, tokens=30), 0.0)) == 3
    with pytest.raises(AtomeshError):  # two of b's for the eight of a's would not be enough
        admission.enqueue(waiting(B, tokens=90), 0.0)
    assert admission.num_waiting == 8


def test_a_wait_longer_than_allowed_is_refused_at_once() -> None:
    admission = busy(2.0, QueueRules(max_wait_s=8.0))
    for _ in range(12):  # six seconds at two a second, which may become eight
        admission.enqueue(waiting(at=100.0), 100.0)
    with pytest.raises(ServiceUnavailableError, match="would wait for about 6 s") as refused:
        admission.enqueue(waiting(at=100.0), 100.0)
    assert refused.value.retry_after_s == 1
    admission.enqueue(waiting(B, at=100.0), 100.0)  # whose own line is empty, and half the turns are its


def test_what_cannot_make_its_deadline_is_refused_at_once() -> None:
    admission = busy(1.0)
    admission.enqueue(waiting(at=100.0), 100.0)
    assert admission.expected_wait_s(A, 100.0) == pytest.approx(2.0, rel=0.1)
    admission.enqueue(waiting(at=100.0, deadline=104.0), 100.0, service_s=1.5)
    with pytest.raises(ServiceUnavailableError, match=r"later than the request's deadline in 4\.0 s"):
        admission.enqueue(waiting(at=100.0, deadline=104.0), 100.0, service_s=1.5)
    assert admission.refusals["deadline"] == 1
    with pytest.raises(ServiceUnavailableError):
        Admission().enqueue(waiting(deadline=1.0), 0.0, service_s=2.0)


def test_an_idle_server_expects_no_wait_whatever_was_before() -> None:
    admission = busy(0.1)
    assert admission.expected_wait_s(A, 100.0) == 0.0
    assert admission.expected_wait_s(A, 10_000.0) == 0.0


@pytest.mark.parametrize("cost", [inf, -inf, nan])
def test_a_cost_that_is_no_amount_is_left_out(cost: float) -> None:
    admission, entry = Admission(), waiting()
    admission.enqueue(entry, 0.0)
    assert admission.next(lambda _: True, None, 0.0) is entry
    admission.charge(entry, 2.0)
    admission.charge(entry, cost)
    admission.finished(entry, cost, 1.0)
    assert admission.cost_of("a") == 2.0
    assert admission.running_of("a") == 0
