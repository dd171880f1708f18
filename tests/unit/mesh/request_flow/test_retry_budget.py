import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.mesh.request_flow.retry_budget import FLOOR, SHARE, WINDOW_S, RetryBudget


def test_a_few_are_always_to_be_had_and_no_more() -> None:
    budget = RetryBudget()
    assert [budget.try_spend(0.0) for _ in range(FLOOR + 2)] == [True] * FLOOR + [False] * 2
    assert (budget.spent, budget.refused) == (FLOOR, 2)


def test_each_five_requests_buy_one() -> None:
    budget = RetryBudget(floor=0)
    for _ in range(4):
        budget.note_request(0.0)
    assert not budget.try_spend(0.0)
    budget.note_request(0.0)
    assert budget.try_spend(0.0)
    assert not budget.try_spend(0.0)


@pytest.mark.parametrize(("later", "is_had"), [(WINDOW_S - 0.01, False), (WINDOW_S, True)])
def test_what_was_spent_is_forgotten_after_the_window(later: float, is_had: bool) -> None:
    budget = RetryBudget(floor=1)
    assert budget.try_spend(0.0)
    assert budget.try_spend(later) is is_had


def test_requests_of_long_ago_buy_nothing() -> None:
    budget = RetryBudget(floor=0)
    for _ in range(100):
        budget.note_request(0.0)
    assert not budget.try_spend(WINDOW_S)


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), max_size=200))
def test_never_more_than_the_share_and_the_floor(events: list[tuple[float, bool]]) -> None:
    """Over the window of the last second and nine before it, as the budget keeps them."""
    budget, now, requests, retries = RetryBudget(), 0.0, 0, 0
    for step, is_retry in events:
        now += step
        if is_retry:
            retries += budget.try_spend(now)
        else:
            budget.note_request(now)
            requests += 1
        assert len(budget._seconds) <= WINDOW_S + 1
    assert retries == budget.spent
    if now < WINDOW_S:
        assert retries <= FLOOR + SHARE * requests
