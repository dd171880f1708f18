import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomesh.errors import RateLimitError
from atomesh.mesh.admission.rate_limits import Allowance, RateLimits
from atomesh.mesh.admission.tenant import Tenant
from atomesh.mesh.admission.token_bucket import TokenBucket


def test_a_bucket_fills_in_a_minute_and_no_further() -> None:
    bucket = TokenBucket(60, now=100.0)
    assert bucket.level(1000.0) == 60.0
    bucket.spend(60.0, 1000.0)
    assert bucket.level(1000.0) == 0.0
    assert bucket.level(1001.5) == 1.5
    assert bucket.seconds_until(10, 1001.5) == pytest.approx(8.5)
    assert bucket.seconds_until_full(1001.5) == pytest.approx(58.5)
    assert bucket.level(2000.0) == 60.0


def test_debt_is_paid_before_anything_is_left() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.spend(90.0, 0.0)
    assert bucket.level(0.0) == -30.0
    assert bucket.seconds_until(1, 0.0) == 31.0
    assert bucket.seconds_until(500, 0.0) == 90.0  # a full bucket has to do


def test_a_resized_bucket_lacks_what_the_old_one_lacked() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.spend(50.0, 0.0)
    assert bucket.resized(100, 0.0).level(0.0) == 50.0
    assert bucket.resized(10, 0.0).level(0.0) == -40.0


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5)), max_size=60),
)
def test_no_minute_brings_more_than_the_limit_and_one_burst_of_it(
    limit: int, asks: list[tuple[float, int]]
) -> None:
    bucket, now, taken = TokenBucket(limit, 0.0), 0.0, 0
    for wait, amount in asks:
        now += wait
        if bucket.seconds_until(amount, now) <= 0.0 and amount <= limit:
            bucket.spend(amount, now)
            taken += amount
        assert taken <= limit + limit * now / 60.0 + 1e-6


def test_requests_are_refused_with_the_time_to_come_back() -> None:
    limits = RateLimits(Tenant("a", requests_per_minute=2), now=0.0)
    limits.take_request(0.0)
    limits.take_request(0.0)
    with pytest.raises(RateLimitError, match="limit of 2 requests per minute") as refused:
        limits.take_request(0.5)
    assert refused.value.retry_after_s == 30
    limits.take_request(30.0)
    with pytest.raises(RateLimitError):
        limits.take_request(30.1)


def test_answer_tokens_are_paid_after_the_fact() -> None:
    limits = RateLimits(Tenant("a", tokens_per_minute=600), now=0.0)
    limits.check_prompt(100, 0.0)
    limits.spend_tokens(100, 0.0)
    limits.spend_tokens(700, 0.0)  # the answer was longer than what was left
    with pytest.raises(RateLimitError, match="600 tokens") as refused:
        limits.check_prompt(10, 0.0)
    assert refused.value.retry_after_s == 21  # 200 of debt and 10 at ten a second
    limits.check_prompt(10, 21.0)


def test_a_prompt_beyond_the_whole_limit_is_taken_from_a_full_bucket() -> None:
    limits = RateLimits(Tenant("a", tokens_per_minute=60), now=0.0)
    limits.check_prompt(1000, 0.0)
    limits.spend_tokens(1, 0.0)
    with pytest.raises(RateLimitError):
        limits.check_prompt(1000, 0.5)


def test_what_is_left_is_told_and_never_less_than_nothing() -> None:
    limits = RateLimits(Tenant("a", requests_per_minute=60, tokens_per_minute=120), now=0.0)
    limits.take_request(0.0)
    limits.spend_tokens(180, 0.0)
    assert limits.allowances(0.5) == {
        "requests": Allowance(60, 59, 0.5),
        "tokens": Allowance(120, 0, 89.5),
    }
    assert RateLimits(Tenant("a"), now=0.0).allowances(0.0) == {}


def test_new_limits_begin_with_what_was_used() -> None:
    limits = RateLimits(Tenant("a", requests_per_minute=10), now=0.0)
    for _ in range(10):
        limits.take_request(0.0)
    limits.adopt(Tenant("a", requests_per_minute=12, tokens_per_minute=5), 0.0)
    left = limits.allowances(0.0)
    assert (left["requests"].remaining, left["tokens"].remaining) == (2, 5)
    limits.adopt(Tenant("a"), 0.0)
    for _ in range(100):
        limits.take_request(0.0)
