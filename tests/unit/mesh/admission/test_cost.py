import pytest

from atomesh.mesh.admission.cost import CostMeter, CostWeights
from atomesh.protocol.generation import TokenDelta

WEIGHTS = CostWeights(prompt_token=1.0, output_token=4.0, kv_pool_second=500.0)


def delta(tokens: int, cached: int | None = None, choice: int = 0) -> TokenDelta:
    return TokenDelta(request_id="r", choice=choice, token_ids=[1] * tokens, cached_tokens=cached)


def test_a_request_costs_what_was_computed_and_what_was_held() -> None:
    meter = CostMeter(100, kv_tokens=1000, now=10.0, weights=WEIGHTS)
    total = meter.start()
    total += meter.take([delta(1, cached=64)], 11.0)
    total += meter.take([delta(2)], 12.0)
    total += meter.end(14.0)
    computed = (100 - 64) + 4.0 * 3
    held = (100 * 1 + 101 * 1 + 103 * 2) / 1000  # pools times seconds
    assert total == pytest.approx(computed + 500.0 * held)


def test_choices_share_the_prompt_and_each_pays_for_its_tokens() -> None:
    meter = CostMeter(10, kv_tokens=0, now=0.0, weights=WEIGHTS)
    total = meter.start() + meter.take([delta(1, cached=0), delta(1, choice=1)], 5.0) + meter.end(9.0)
    assert total == 10 + 8


def test_a_pool_of_unknown_size_costs_nothing() -> None:
    assert CostMeter(10, kv_tokens=0, now=0.0, weights=WEIGHTS).end(100.0) == 0.0
